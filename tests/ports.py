"""Ports that nobody uses."""

from __future__ import annotations

import random
import socket

#: Below those that the kernel gives to connections (``ip_local_port_range``): other tests make many of these.
_FIRST, _LAST = 20_000, 32_000


def free_port() -> int:
    """One of this host's own address, as long as nobody takes it meanwhile."""
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
            return port
