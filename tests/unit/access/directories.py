"""Directories of tests that are guarded, or that others share, and what can be done in one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from deeppart import access
from deeppart.access import node_rules, persistent_rules

NODE, PERSISTENT = node_rules("private"), persistent_rules("private")


def read(path: Path) -> bytes:
    descriptor = access.open_file(path)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def umasked(mode: int) -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def operations(path: Path) -> dict[str, Callable[[], object]]:
    other = path.with_name("other")
    return {
        "open_file": lambda: os.close(access.open_file(path)),
        "write": lambda: os.close(access.open_file(path, os.O_RDWR)),
        "create": lambda: os.close(access.create(other)),
        "lstat": lambda: access.lstat(path),
        "names_in": lambda: access.names_in(path.parent),
        "rename": lambda: access.rename(path, other),
        "link": lambda: access.link(path, other),
        "remove": lambda: access.remove(path),
        "sync_directory": lambda: access.sync_directory(path.parent),
    }


def descriptors() -> set[str]:
    """Those that are open; what must not be left open is compared with what was open before."""
    return set(os.listdir("/proc/self/fd"))
