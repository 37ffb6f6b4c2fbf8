"""What the numbers were measured on: without it they mean nothing to anyone else."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


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


def busy_share(seconds: float = 2.0) -> float:
    """Share of the processors that other programs use, while this one sleeps."""
    before = ProcessorTimes.now()
    time.sleep(seconds)
    after = ProcessorTimes.now()
    return (after.busy - before.busy) / max(after.all - before.all, 1e-9)


def stolen_share(since: ProcessorTimes) -> float:
    """Share of the processors that the host took away since then."""
    now = ProcessorTimes.now()
    return (now.stolen - since.stolen) / max(now.all - since.all, 1e-9)


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
