"""Spares: files of a retired step that the next checkpoint writes over (docs/decisions/0006).

They are written in place, so it matters who else may have the file. A session sets aside only files of directories that
carry its own name, in a folder that does, too, and takes them from there alone. Second names of a file, bases, are
given within a session as well. So no other session can have named what is written over, or be writing to it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from deeppart.part import is_parity_file_name, parse_base_file_name, parse_part_file_name

#: Folder of a level; followed by the session. Without it in the older layout.
SPARES_NAME = ".spare"


def spares_directory(root: Path, session: str) -> Path:
    """Where a session keeps files of a level, below its root, that are not needed any more, and whose storage is."""
    return root / f"{SPARES_NAME}-{session}"


def drop_foreign_spares(root: Path, session: str) -> None:
    """Remove what other sessions have kept to be written over, as far as the system lets us: nothing refers to it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            if name == SPARES_NAME or (name.startswith(f"{SPARES_NAME}-") and name != f"{SPARES_NAME}-{session}"):
                drop_spares(root / name)


def is_checkpoint_file(name: str) -> bool:
    """Whether a name is that of a part, a base or parity."""
    parsed = parse_part_file_name(name) or parse_base_file_name(name)
    return parsed is not None or is_parity_file_name(name)


def take_spare(spares: Path, name: Path) -> bool:
    """Give one of the spare files another name; False if there is none. Several ranks of a session may take them.

    A file that has yet another name is a base, which a newer step needs: it must not be written over. Its names are
    looked at last, when nobody can give it more: bases are named after files in step directories.
    """
    try:
        found = sorted(os.listdir(spares))
    except OSError:
        return False
    for spare in sorted(found, key=lambda each: each != name.name.split(".tmp-")[0].lstrip(".")):
        try:
            os.rename(spares / spare, name)
            if os.stat(name).st_nlink == 1:
                return True
            os.unlink(name)
        except OSError:
            continue
    return False


def drop_spares(spares: Path) -> None:
    """Remove what nobody has taken, as far as the system lets us."""
    with contextlib.suppress(OSError):
        for name in os.listdir(spares):
            if is_checkpoint_file(name):
                os.unlink(spares / name)
        os.rmdir(spares)


def set_aside(path: Path, spares: Path) -> None:
    """Make the checkpoint files of a step directory spare ones, in place of those that nobody has taken."""
    try:
        names = [name for name in os.listdir(path) if is_checkpoint_file(name)]
        drop_spares(spares)
        os.makedirs(spares, exist_ok=True)
        for name in names:
            os.rename(path / name, spares / name)
    except OSError:
        pass  # they are removed instead
