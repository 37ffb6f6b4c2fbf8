"""Second names of files: hard links."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from deeppart import access


def link(path: Path, name: Path) -> bool:
    """Give a file a second name; False if that cannot be done, or another file has it."""
    try:
        access.link(path, name)
    except FileExistsError:
        with contextlib.suppress(OSError):
            return os.path.samestat(access.lstat(path), access.lstat(name))
        return False
    except OSError:
        return False
    return True


def remove_links(names: Iterable[Path]) -> None:
    """Take names away again, as far as the system lets us."""
    for name in names:
        with contextlib.suppress(OSError):
            access.remove(name)
