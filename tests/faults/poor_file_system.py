"""A FUSE file system that passes everything on, except what poor ones lack: hard links, locks, O_DIRECT.

    python -m tests.faults.poor_file_system SOURCE MOUNT CONTROL

CONTROL is a file with the name of an operation, which does not return while the file exists.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-untyped]

#: Seconds to wait for the mount.
_PATIENCE_S = 30.0


class PoorFileSystem(mfusepy.Operations):  # type: ignore[misc]
    """Operations on ``source``; ``control`` says which one hangs."""

    use_ns = True

    def __init__(self, source: Path, control: Path) -> None:
        self._source, self._control = source, control

    def _real(self, path: str) -> str:
        return str(self._source / path.lstrip("/"))

    def _wait(self, operation: str) -> None:
        with contextlib.suppress(OSError):
            while self._control.read_text() == operation:
                time.sleep(0.02)

    # --- what it lacks ---

    def link(self, target: str, source: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def flock(self, path: str, *arguments: Any) -> int:
        raise mfusepy.FuseOSError(errno.EOPNOTSUPP)

    def lock(self, path: str, *arguments: Any) -> int:
        raise mfusepy.FuseOSError(errno.EOPNOTSUPP)

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise mfusepy.FuseOSError(errno.EINVAL)
        self._wait("open")
        return os.open(self._real(path), flags)

    # --- what it has ---

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._wait("open")
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._real(path))
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
        times = {name: getattr(status, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return {name: getattr(status, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._real(path))]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._wait("write")
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._real(path), length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._wait("fsync")
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def rename(self, old: str, new: str) -> int:
        self._wait("rename")
        os.rename(self._real(old), self._real(new))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._real(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._real(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._real(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._real(path), mode)
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        os.utime(self._real(path), ns=times)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._real(path))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "frsize", "namemax")
        return {f"f_{name}": getattr(status, f"f_{name}") for name in names}


@contextlib.contextmanager
def mounted(module: str, *arguments: str, directory: Path) -> Iterator[None]:
    """A process that runs a module, which mounts a file system on a directory; raises OSError where it cannot."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(directory):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError("FUSE cannot mount here")
            time.sleep(0.02)
        yield
    finally:
        subprocess.run(("umount", "-l", str(directory)), capture_output=True, timeout=300, check=False)
        process.kill()
        process.wait()


if __name__ == "__main__":
    source, mount, control = map(Path, sys.argv[1:])
    mfusepy.FUSE(PoorFileSystem(source, control), str(mount), foreground=True)
