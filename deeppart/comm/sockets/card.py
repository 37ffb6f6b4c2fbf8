"""What ranks tell each other before they can exchange messages: where each is reached, and by whom."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from zmq.utils import z85

#: A host, or its address of version 4 or, in brackets, 6; and a port.
_ADDRESS = re.compile(r"tcp://([\w.-]+|\[[0-9a-fA-F:.%\w]+\]):(\d{1,5})", re.ASCII)
#: Z85, rfc.zeromq.org/spec/32.
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class Card:
    """How a rank is reached. Nothing in it is secret.

    Attributes:
        address: of its socket for messages, as ZeroMQ writes it: ``tcp://10.0.0.1:41233``.
        bulk_address: of that for long ones.
        public_key: of its CURVE key pair, 40 characters (Z85): who it is.
        host: the same for processes that can read each other's memory, if they may.
        pid: of the process, there.
        start: which start of a session between the same ranks this was made for, counted by each rank.
        call: for one start of one process; no two are alike.
    """

    address: str
    bulk_address: str
    public_key: str
    host: str
    pid: int
    start: int
    call: str

    def __post_init__(self) -> None:
        texts = (self.address, self.bulk_address, self.public_key, self.host, self.call)
        good = (
            all(isinstance(each, str) for each in texts) and isinstance(self.pid, int) and isinstance(self.start, int)
        )
        if not good or not all(map(_is_address, texts[:2])) or not _is_key(self.public_key):
            raise ValueError("not how a rank is reached")

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Card:
        """From what :meth:`encode` has made."""
        return cls(**json.loads(data))


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 1 << 16


def _is_key(text: str) -> bool:
    try:
        return _KEY.fullmatch(text) is not None and bool(z85.decode(text))
    except struct.error:  # five characters are more than four bytes have room for
        return False


def host_name() -> str:
    """Processes for which it is the same have one kernel, one network and one numbering of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in ("net", "pid")]
    return "-".join((boot, *spaces))


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which another one is reached: nothing is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
