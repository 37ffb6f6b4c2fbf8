"""A persistent directory that is really slow: a FUSE file system that passes so many bytes a second, for all together.

    python -m tests.faults.slow_file_system "100 MB/s" deeppart-sim validate --quick --persistent-dir {}

mounts one on a folder of its own, runs the command with ``{}`` replaced by its path, unmounts it, and ends with the
command's exit code. It needs /dev/fuse, libfuse (FUSE_LIBRARY_PATH says where, if it is not installed) and the right to
mount. What is written lies in the temporary directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mfusepy  # type: ignore[import-untyped]

from deeppart.model import read_rate
from tests.faults.poor_file_system import PoorFileSystem, mounted

#: So long it may have been idle, and catch up.
_BURST_S = 0.005


class SlowFileSystem(PoorFileSystem):
    """Operations on ``source``, reads and writes at ``rate`` bytes per second, whoever makes them."""

    def __init__(self, source: Path, rate: float) -> None:
        super().__init__(source, source / "no-control")
        self._rate, self._lock, self._free_at = rate, threading.Lock(), 0.0

    def _pass(self, nbytes: int) -> None:
        with self._lock:
            # What a writer takes between two requests does not lower the rate.
            self._free_at = max(self._free_at, time.monotonic() - _BURST_S) + nbytes / self._rate
            wait_s = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags & ~os.O_DIRECT)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._pass(size)
        return super().read(path, size, offset, fh)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._pass(len(data))
        return super().write(path, data, offset, fh)


@contextmanager
def slow_directory(rate: str) -> Iterator[Path]:
    """A mounted file system of such a rate, such as "100 MB/s"."""
    with tempfile.TemporaryDirectory(prefix="deeppart-slow-") as folder:
        source, mount = Path(folder) / "source", Path(folder) / "mount"
        source.mkdir(), mount.mkdir()
        arguments = ("--serve", rate, str(source), str(mount))
        with mounted("tests.faults.slow_file_system", *arguments, directory=mount):
            yield mount


def main(arguments: list[str]) -> int:
    """Run a command beside such a file system; returns its exit code."""
    if arguments[:1] == ["--serve"]:
        rate, source, mount = arguments[1:]
        mfusepy.FUSE(SlowFileSystem(Path(source), read_rate(rate)), mount, foreground=True)
        return 0
    rate, *command = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is mounted is unmounted
    with slow_directory(rate) as place:
        return subprocess.run([each.replace("{}", str(place)) for each in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
