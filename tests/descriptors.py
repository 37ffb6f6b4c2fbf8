"""Which files this process has open, without those that other tests leave to the garbage collector."""

from __future__ import annotations

import os
from pathlib import Path


def open_at(directory: Path) -> list[str]:
    """Open files and directories below ``directory``, itself, and on the way to it, an entry for each descriptor."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = Path(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that listed them, or another thread's
            continue
        if path.is_relative_to(directory) or (path.is_absolute() and directory.is_relative_to(path)):
            found.append(str(path))
    return sorted(found)
