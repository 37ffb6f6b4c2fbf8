"""Ports that nobody uses."""

from __future__ import annotations

import contextlib
import os
import random
import socket

#: Below those that the kernel gives to connections (``ip_local_port_range``): other tests make many of these.
_FIRST, _LAST = 20_000, 32_000
#: Each worker of pytest-xdist has ports of its own: a test may listen at one only long after it was found free.
_WORKERS = 8


def free_port() -> int:
    """One of this host's own address, as long as nobody takes it meanwhile."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """The same, of so many different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{_WORKERS - 1}").removeprefix("gw")) % _WORKERS
    each = (_LAST - _FIRST) // _WORKERS
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = random.SystemRandom().randrange(each) + _FIRST + worker * each
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody has it
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports
