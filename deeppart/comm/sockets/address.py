"""The address of a rank, which others need to exchange messages with it."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from zmq.utils import z85

from deeppart.config import socket_interface

#: A host name, or an IP address of version 4 or, in brackets, 6; and a port.
_ENDPOINT = re.compile(r"tcp://([\w.-]+|\[[0-9a-fA-F:.%\w]+\]):(\d{1,5})", re.ASCII)
#: Z85, rfc.zeromq.org/spec/32.
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one rank in one session. Nothing in it is secret.

    Attributes:
        messages: endpoint of its socket for messages, in ZeroMQ's form: ``tcp://10.0.0.1:41233``.
        pieces: endpoint of its socket for pieces of long messages.
        public_key: of its CURVE key pair, 40 characters (Z85); new and unique for each session.
        host: the same for processes that could read each other's memory.
        pid: its process id on the host.
        start: without MPI, the number of the session's start, counted by each rank: the n-th of one is that of all.
    """

    messages: str
    pieces: str
    public_key: str
    host: str
    pid: int
    start: int

    def __post_init__(self) -> None:
        texts = (self.messages, self.pieces, self.public_key, self.host)
        numbers = (self.pid, self.start)
        good = all(isinstance(each, str) for each in texts) and all(isinstance(each, int) for each in numbers)
        if not good or not all(map(_is_endpoint, texts[:2])) or not _is_key(self.public_key):
            raise ValueError("not the address of a rank")

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Address:
        """The inverse of :meth:`encode`."""
        return cls(**json.loads(data))


def _is_endpoint(text: str) -> bool:
    match = _ENDPOINT.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 1 << 16


def _is_key(text: str) -> bool:
    try:
        return _KEY.fullmatch(text) is not None and bool(z85.decode(text))
    except struct.error:  # five characters can exceed four bytes
        return False


def host_name() -> str:
    """The same for processes with the same kernel, network and process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in ("net", "pid")]
    return "-".join((boot, *spaces))


def ip_address_towards(host: str, port: int) -> str:
    """The IP address of this machine on the route to another one; sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of_host() -> str:
    """The default address on which this rank listens: the configured one, or that of the host's name."""
    return socket_interface() or _ip_address_of_host()


def _ip_address_of_host() -> str:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "127.0.0.1"
