"""Refusals inside the C library, by libfiu (https://blitiri.com.ar/p/libfiu/) where it is installed.

What this covers beyond StorageFaults, which replaces functions of Python's ``os``: writes and reads that do less than
they were asked for, mappings of memory, listing directories below ``os``, and reads by Python's own file objects. What
it cannot do is tell files apart: so only calls of the library's background threads are counted and refused.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.faults.campaign.records import Life

#: Name in the report -> (libfiu's name, errno; "" where the call does less instead of failing).
POINTS = {
    "open": ("posix/io/oc/open", "ENOSPC"),
    "close": ("posix/io/oc/close", "EIO"),
    "write": ("posix/io/rw/write", "EIO"),
    "short write": ("posix/io/rw/write/reduce", ""),
    "read": ("posix/io/rw/read", "EIO"),
    "short read": ("posix/io/rw/read/reduce", ""),
    "fsync": ("posix/io/sync/fsync", "EIO"),
    "rename": ("posix/io/dir/rename", "ENOSPC"),
    "unlink": ("posix/io/dir/unlink", "EIO"),
    "list": ("posix/io/dir/opendir", "EIO"),
    "mmap": ("posix/mm/mmap", "ENOMEM"),
}
_MOST_CALLS = 24
_PLACES = ("/usr/lib/fiu", "/usr/local/lib/fiu", "/usr/lib/x86_64-linux-gnu/fiu", "/usr/lib64/fiu")
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_uint),
)


@dataclass(frozen=True, slots=True)
class LibcFault:
    """Call ``number`` of a rank's background threads is refused, from checkpoint ``at`` on; all later ones too if
    ``lasting``.
    """

    point: str
    number: int
    lasting: bool
    rank: int
    at: int


def planned(name: str, place: int, life: Life) -> LibcFault | None:
    """The fault of one life of a scenario; not part of the plan, which is the same without libfiu."""
    rng = random.Random(f"{name}:{place}:libfiu")
    if life.kill is not None or not life.checkpoints or rng.random() < 0.2:
        return None
    number = int(_MOST_CALLS * rng.random() ** 1.5)
    rank, at = rng.randrange(life.world), rng.randrange(life.checkpoints)
    return LibcFault(rng.choice(list(POINTS)), number, rng.random() < 0.2, rank, at)


def preload(directory: Path | None) -> dict[str, str] | None:
    """The environment that puts libfiu below a process; None where it is not installed.

    Args:
        directory: where to look for its libraries, at any depth; None for the usual places.
    """
    wrappers = [
        path for place in ([directory] if directory else map(Path, _PLACES)) for path in _find(place, "posix_preload")
    ]
    libraries = _find(directory, "libfiu.so.0") if directory else []
    if not wrappers or not (libraries or ctypes.util.find_library("fiu")):
        return None
    environment = {"LD_PRELOAD": str(wrappers[0])}
    return environment | ({"LD_LIBRARY_PATH": str(libraries[0].parent)} if libraries else {})


def _find(place: Path, name: str) -> list[Path]:
    return sorted(path for path in place.rglob("*.so*") if name in path.name)


class LibcFaults:
    """Counts the calls that a fault is about, and refuses those it says; a context manager.

    Attributes:
        seen, refused: how many calls.
    """

    def __init__(self, fault: LibcFault) -> None:
        self._fault = fault
        self._name = POINTS[fault.point][0].encode()
        self._code = getattr(errno, POINTS[fault.point][1], 1)
        self._lock = threading.Lock()
        self._armed = False
        self._library = ctypes.CDLL(None)
        self._callback = _CALLBACK(self._called)
        self.seen = self.refused = 0

    def arm(self) -> None:
        """From here on calls are counted."""
        self._armed = True

    def __enter__(self) -> LibcFaults:
        self._library.fiu_init(0)
        code = ctypes.c_void_p(self._code)
        if self._library.fiu_enable_external(self._name, 1, code, 0, self._callback) != 0:
            raise RuntimeError(f"libfiu does not know {self._name!r}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.fiu_disable(self._name)

    def _called(self, name: bytes, failnum: object, failinfo: object, flags: object) -> int:
        if not self._armed or not threading.current_thread().name.startswith("deeppart-"):
            return 0
        with self._lock:
            number = self.seen
            self.seen += 1
            chosen = number == self._fault.number or (self._fault.lasting and number > self._fault.number)
            self.refused += chosen
            return int(chosen)
