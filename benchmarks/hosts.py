"""Several hosts on one machine, with links of a limited rate: network namespaces on a bridge (Linux, root, MPICH).

Where all ranks share one memory, what is sent costs next to nothing, and who sends how much to whom does not show.
Here every host has a link that carries so many bits per second in each direction (tc-tbf(8)).
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launching import CannotRunError

#: A network that nobody else has, as a rule; the hosts are .1, .2, ...
_NETWORK = "10.77.77"
_BURST = "512kb"
#: Longest wait of a packet for its turn, before it is dropped.
_LATENCY = "50ms"
#: What the launcher starts a host's ranks with, in place of ssh: the name comes first, then the command.
_AGENT = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
name=$1; shift
exec ip netns exec "$name" unshare -u bash -c "hostname $name; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """What starts ranks on the hosts.

    Attributes:
        launcher: arguments to add to MPICH's ``mpirun``.
        environment: variables that its ranks need.
    """

    launcher: tuple[str, ...]
    environment: dict[str, str]


@contextmanager
def linked_hosts(count: int, mbit: int) -> Iterator[Hosts]:
    """Hosts for the ranks of one job, one for each in turn; removed at the end.

    Args:
        count: how many.
        mbit: rate of each one's link, 10**6 bits per second in each direction.

    Raises:
        CannotRunError: not on this machine.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        raise CannotRunError("hosts with links of a limited rate need root, and ip, tc and unshare (iproute2)")
    bridge, names = f"dpb{os.getpid()}", [f"dph{os.getpid()}-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="deeppart-bench-") as folder:
        agent = Path(folder) / "agent"
        agent.write_text(_AGENT, encoding="utf-8")
        agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{_NETWORK}.254/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number, name in enumerate(names):
                _connect(name, bridge, number, mbit)
            launcher = ("-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", ",".join(names), "-iface", bridge)
            yield Hosts(launcher, {"UCX_TLS": "tcp,self"})
        finally:
            for name in names:
                _ip("netns", "del", name, check=False)  # its end of the link goes with it, and so does the other
            _ip("link", "del", bridge, check=False)


def _connect(name: str, bridge: str, number: int, mbit: int) -> None:
    outer = f"dpv{os.getpid()}-{number}"
    _ip("netns", "add", name)
    _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("link", "set", outer, "master", bridge, "up")
    _ip("-n", name, "addr", "add", f"{_NETWORK}.{number + 1}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _ip("-n", name, "link", "set", device, "up")
    rate = ("root", "tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", _LATENCY)
    _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *rate)
    _run("tc", "qdisc", "add", "dev", outer, *rate)


def _ip(*arguments: str, check: bool = True) -> None:
    _run("ip", *arguments, check=check)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise CannotRunError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
