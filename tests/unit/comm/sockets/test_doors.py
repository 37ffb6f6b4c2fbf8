"""The sockets of a rank: where they listen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deeppart.comm.sockets.doors import Doors
from deeppart.errors import CommError


def listening(port: int) -> set[str]:
    """Local addresses, as the kernel shows them, on which something listens at a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            place, state = line.split()[1], line.split()[3]
            if state == "0A" and int(place.split(":")[1], 16) == port:
                found.add(place.split(":")[0])
    return found


@pytest.mark.parametrize("interface", ["127.0.0.1", "lo"])
def test_only_the_interface_that_is_named_is_bound(interface: str) -> None:
    doors = Doors(interface, 1, "call", 5.0)
    for address in (doors.card.address, doors.card.bulk_address):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        assert host == "127.0.0.1"
        assert listening(int(port)) == {"0100007F"}
    doors.close(0)


def test_ip_version_6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    doors = Doors("::1", 1, "call", 5.0)
    assert doors.card.address.startswith("tcp://[::1]:")
    doors.close(0)


@pytest.mark.parametrize("interface", ["no-such-interface", "192.0.2.1", "300.1.1.1"])
def test_no_such_interface(interface: str) -> None:
    with pytest.raises(CommError, match="cannot listen") as caught:
        Doors(interface, 1, "call", 5.0)
    assert interface in str(caught.value) and "GLOO_SOCKET_IFNAME" in str(caught.value)
