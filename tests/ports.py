"""Ports that nobody uses."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below those that the kernel gives to connections (``ip_local_port_range``): other tests make many of these.
_FIRST, _LAST = 20_000, 32_000


def free_port() -> int:
    """One of this host's own address, as long as nobody takes it meanwhile."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """The same, of so many different ones."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = random.SystemRandom().randint(_FIRST, _LAST)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody has it
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports
