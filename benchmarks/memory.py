"""How much memory a process takes, from ``/proc``: Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_SAMPLE_EVERY_S = 0.005


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
    """How far this process's memory grows inside a ``with`` block.

    The kernel's own peak (``VmHWM``, reset at the start) misses nothing and costs nothing. It counts file mappings
    too; samples of anonymous and shared memory tell those apart, but take the interpreter now and then: off by default.

    Attributes:
        sample: sample as well.
        growth_bytes: kernel's peak of resident memory minus what was resident at the start.
        sampled_bytes: the same for anonymous and shared memory, sampled; 0 without ``sample``.
    """

    sample: bool = False
    growth_bytes: int = 0
    sampled_bytes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _start_bytes: int = 0

    def __enter__(self) -> MemoryWatch:
        _give_back_freed()
        self._start_bytes = status_bytes("VmRSS")
        with contextlib.suppress(OSError):  # not permitted in some sandboxes: then the peak is that of the whole life
            Path("/proc/self/clear_refs").write_text("5")
        if self.sample:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.growth_bytes = max(0, status_bytes("VmHWM") - self._start_bytes)

    def _watch(self) -> None:
        start = status_bytes("RssAnon", "RssShmem")
        while not self._stop.wait(_SAMPLE_EVERY_S):
            self.sampled_bytes = max(self.sampled_bytes, status_bytes("RssAnon", "RssShmem") - start)


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
