"""Ports that nobody uses."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One of this host's own address, as long as nobody takes it meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
