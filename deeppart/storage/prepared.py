"""Files that are made in the background before a checkpoint needs them, to be written over (docs/decisions/0006).

On a file system in memory, a new file's pages must be found, cleared and mapped, which takes longer than to copy into
them; that is why files of retired steps are written over. The first checkpoints of a session have none of these.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from deeppart import access
from deeppart.access.hanging import call
from deeppart.storage.mapped import bytes_in_memory, file_memory, forget_removed
from deeppart.storage.spares import drop_spares, is_checkpoint_file

#: Written and mapped at a time; in between, it can be stopped.
_PIECE_BYTES = 8 << 20


def unfinished_directory(spares: Path) -> Path:
    """Where files lie that are still being made: nobody takes them from there."""
    return spares.with_name(f"{spares.name}-new")


def make_spare(spares: Path, name: str, nbytes: int, is_wanted: Callable[[], bool]) -> bool:
    """Make a file of zeros among the recycled ones, and map it; from any thread."""
    path = unfinished_directory(spares) / name
    try:
        access.make_folder(path.parent)
        descriptor = access.create(path, os.O_RDWR)
    except OSError:
        return False
    made = False
    try:
        if _fill(path, descriptor, nbytes, is_wanted):
            access.make_folder(spares)
            access.rename(path, spares / name)
            made = True
    except OSError:
        pass  # full, for one: the checkpoint will say so itself, if it finds no room either
    finally:
        os.close(descriptor)
        if not made:
            with contextlib.suppress(OSError):
                access.remove(path)
    return made


def drop_made(spares: Path, names: Iterable[str]) -> None:
    """Remove what one rank has made and nobody has taken, as far as the system lets us.

    Also the directories, if it was the last: whoever removes all recycled files may have done so before.
    """
    for directory in (spares, unfinished_directory(spares)):
        for name in names:
            with contextlib.suppress(OSError):
                access.remove(directory / name)
        with contextlib.suppress(OSError), access.open_folder(directory.parent) as above:
            above.remove_directory(directory.name)


def give_back(directories: Iterable[Path]) -> bool:
    """Remove the recycled files that nobody has taken, and those that are being made; True if there were any.

    Where space is short, what might be written over later must not keep from what is to be written now.
    """
    found = False
    for spares in directories:
        for directory in (spares, unfinished_directory(spares)):
            with contextlib.suppress(OSError):
                found |= any(map(is_checkpoint_file, access.names_in(directory)))
            drop_spares(directory)
    forget_removed()
    return found


def _fill(path: Path, descriptor: int, nbytes: int, is_wanted: Callable[[], bool]) -> bool:
    zeros = memoryview(bytes(_PIECE_BYTES))
    at = 0
    while at < nbytes:
        if not is_wanted():
            return False
        at += call("write", path, descriptor, zeros[: nbytes - at])
        if not bytes_in_memory(descriptor):
            return False
    for start in range(0, nbytes, _PIECE_BYTES):
        if not is_wanted():
            return False
        file_memory(descriptor, start, min(_PIECE_BYTES, nbytes - start))
    return True
