"""How much memory a process takes, from ``/proc``: Linux only."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


def status_bytes(*names: str) -> int:
    """Sum of fields of ``/proc/self/status`` such as "VmRSS", in bytes."""
    total = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += 1024 * int(value.split()[0])
    return total


@dataclass
class MemoryWatch:
    """How far this process's memory grows inside a ``with`` block, by the kernel's own peak (``VmHWM``, reset first).

    Attributes:
        files: a directory whose files are not counted where they are mapped; None to count all. On a tmpfs they take
            the same memory whether a process maps or writes them.
        growth_bytes: peak of resident memory minus what was resident at the start.
        mapped_bytes: what of ``files`` is mapped at the end and was not at the start.
    """

    files: Path | None = None
    growth_bytes: int = 0
    mapped_bytes: int = 0
    _start_bytes: int = 0
    _start_mapped_bytes: int = 0

    def __enter__(self) -> MemoryWatch:
        _give_back_freed()
        self._start_mapped_bytes = self._mapped()
        self._start_bytes = status_bytes("VmRSS")
        with contextlib.suppress(OSError):  # not permitted in some sandboxes: then the peak is that of the whole life
            Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mapped_bytes = max(0, self._mapped() - self._start_mapped_bytes)
        self.growth_bytes = max(0, status_bytes("VmHWM") - self._start_bytes - self.mapped_bytes)

    def _mapped(self) -> int:
        """Resident bytes of mapped files in the directory."""
        total, counts = 0, False
        if self.files is not None:
            for line in Path("/proc/self/smaps").read_text().splitlines():
                if "-" in line.split(" ", 1)[0]:  # the head of a mapping: its addresses, and what is mapped
                    counts = f" {self.files}/" in line
                elif counts and line.startswith("Rss:"):
                    total += 1024 * int(line.split()[1])
        return total


def _give_back_freed() -> None:
    """Let the allocator return freed memory, so that reusing it counts as growth."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def available_bytes() -> int:
    """Memory that this machine can give to new work."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 0
