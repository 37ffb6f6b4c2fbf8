"""What the numbers were measured on: without it they mean nothing to anyone else."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
#: Shares of the processors from which on times are no evidence: in use by others at the start, taken by the host
#: meanwhile, used by others meanwhile, what the kernel does for us included.
MOST_BUSY, MOST_STOLEN, MOST_OTHERS = 0.05, 0.02, 0.10


def describe_machine(directories: dict[str, str]) -> dict[str, Any]:
    """Processor, memory, kernel and the file systems of the directories (name -> path)."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": 1024 * int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]),
        "kernel": f"{platform.system()} {platform.release()}",
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
        "commit": _commit(),
        "load_at_start": os.getloadavg()[0],
        "file_systems": {name: _file_system(Path(path)) for name, path in directories.items()},
    }


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds of all processors together since the machine has started, as ``/proc/stat`` counts them.

    Attributes:
        all, busy: of any kind; not idle, and not waiting for storage.
        stolen: the host of a virtual machine had something else to do.
    """

    all: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> ProcessorTimes:
        """As of this moment; zeros where they are not told."""
        kinds = _read("/proc/stat").split("\n", 1)[0].split()[1:9]
        ticks = [float(kind) for kind in kinds] or [0.0] * 8
        hertz = os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks) / hertz, (sum(ticks) - ticks[3] - ticks[4]) / hertz, ticks[7] / hertz)


class Load:
    """What others do on this machine while something is measured.

    Making one takes two seconds, in which this process sleeps.

    Attributes:
        busy: share of the processors that other programs used then.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        before = ProcessorTimes.now()
        time.sleep(seconds)
        self._began, self._own_s = ProcessorTimes.now(), _own_s()
        self.busy = (self._began.busy - before.busy) / max(self._began.all - before.all, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Shares of the processors, and in words why times are no evidence, empty if they are; as of now.

        Processes of ours count as ours once they have ended and have been waited for.
        """
        now = ProcessorTimes.now()
        every = max(now.all - self._began.all, 1e-9)
        stolen_s = now.stolen - self._began.stolen
        others_s = now.busy - self._began.busy - stolen_s - (_own_s() - self._own_s)
        shares = {"busy": self.busy, "stolen": stolen_s / every, "others": max(0.0, others_s / every)}
        return shares | {"no_evidence": why_no_evidence(**shares)}


def why_no_evidence(busy: float, stolen: float, others: float) -> str:
    """What disturbed a run, as a sentence; empty if nothing did."""
    found = []
    if busy > MOST_BUSY:
        found.append(f"before the start other programs used {100 * busy:.0f} % of the processors")
    if stolen > MOST_STOLEN:
        found.append(f"meanwhile the host of this machine took {100 * stolen:.1f} %")
    if others > MOST_OTHERS:
        found.append(f"meanwhile other programs used {100 * others:.0f} %")
    return f"No evidence: {', and '.join(found)}. Measure again when it is quiet." if found else ""


def _own_s() -> float:
    """Processor time of this process, and of those below it that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _field(file: str, name: str) -> str:
    for line in _read(file).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _file_system(path: Path) -> str:
    """Type and options of the file system that a path is on: "ext4 (rw,relatime,discard)"."""
    best, found = "", "unknown"
    resolved = str(path.resolve())
    for line in _read("/proc/mounts").splitlines():
        _, mount, kind, options, *_ = line.split()
        inside = mount == "/" or resolved == mount or resolved.startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, f"{kind} ({options})"
    return found


def _commit() -> str:
    """The checkout's commit, with a + if files differ from it; empty outside a checkout."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
