"""Recycled files: those of a retired step, over which the next checkpoint writes (docs/decisions/0006).

They are written in place, so it matters who else may have the file. A session sets aside only files of directories that
carry its own name, in a folder that does, too, and takes them from there alone. Second names of a file, bases, are
given within a session as well. So no other session can have named what is written over, or be writing to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from deeppart import access
from deeppart.part import is_parity_file_name, parse_base_file_name, parse_node_file_name, parse_part_file_name

#: Folder of a level; followed by the session. Without it in the older layout.
SPARES_NAME = ".spare"


def spares_directory(root: Path, session: str) -> Path:
    """The directory below a level's root in which a session keeps recycled files."""
    return root / f"{SPARES_NAME}-{session}"


def drop_foreign_spares(root: Path, session: str) -> None:
    """Remove what other sessions have kept to be written over, as far as the system lets us: nothing refers to it."""
    with contextlib.suppress(OSError):
        for name in access.directories_in(root):
            if name == SPARES_NAME or (name.startswith(f"{SPARES_NAME}-") and name != f"{SPARES_NAME}-{session}"):
                drop_spares(root / name)


def is_checkpoint_file(name: str) -> bool:
    """True if a name is that of a part, a base, parity or a node file."""
    parsed = parse_part_file_name(name) or parse_base_file_name(name) or parse_node_file_name(name)
    return parsed is not None or is_parity_file_name(name)


def in_order_of_removal(names: Iterable[str]) -> list[str]:
    """Names of files of a step, what refers to others before these: a part without its base is damage, then."""
    return sorted(names, key=lambda name: parse_base_file_name(name) is not None)


def take_spare(spares: Path, name: Path) -> int | None:
    """Give one of the recycled files another name and open it; None if there is none. Ranks of a session may take them.

    What is not a file of this user's own (a link, a FIFO, a file of another) is not written to, and neither is a file
    that has yet another name: it is a base, which a newer step needs. Its names are looked at last, when nobody can
    give it more: bases are named after files in step directories.
    """
    try:
        found = sorted(access.names_in(spares))
    except OSError:
        return None
    wanted = name.name.split(".tmp-")[0].lstrip(".")
    # A process has mapped those that it has written to: of its rank, at best of the same name.
    for spare in sorted(found, key=lambda each: (each != wanted, _rank_of(each) != _rank_of(wanted))):
        try:
            access.rename(spares / spare, name)
        except OSError:
            continue
        try:
            return access.open_file(name, os.O_RDWR)
        except OSError:
            with contextlib.suppress(OSError):
                access.remove(name)
    return None


def _rank_of(name: str) -> int | None:
    parsed = parse_part_file_name(name) or parse_base_file_name(name)
    return None if parsed is None else parsed[0]


def drop_spares(spares: Path) -> None:
    """Remove what nobody has taken, as far as the system lets us."""
    with contextlib.suppress(OSError):
        with access.open_folder(spares) as folder:
            for name in folder.names():
                if is_checkpoint_file(name):
                    folder.remove(name)
        with access.open_folder(spares.parent) as above:
            above.remove_directory(spares.name)


def set_aside(path: Path, spares: Path) -> None:
    """Recycle the checkpoint files of a step directory, in place of the recycled files that nobody has taken."""
    try:
        drop_spares(spares)
        with access.open_folder(path) as folder:
            access.make_folder(spares)
            with access.open_folder(spares) as there:
                for name in in_order_of_removal(folder.names()):
                    if is_checkpoint_file(name):
                        folder.rename(name, there, name)
    except OSError:
        pass  # they are removed instead
