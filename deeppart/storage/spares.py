"""Recycled files: those of a retired step, over which the next checkpoint writes (docs/decisions/0006).

They are written in place, so it matters who else may have the file. A session sets aside only files of directories that
carry its own name, in a folder that does, too, and takes them from there alone: no other session can be writing to what
is written over.

The first checkpoints of a session have none of these, and on a file system in memory a new file's pages must be found,
cleared and mapped, which takes longer than to copy into them: such files can be made in the background.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from deeppart import access
from deeppart.access.hanging import call
from deeppart.mapped import bytes_in_memory, file_memory, forget_removed
from deeppart.part import parse_part_file_name
from deeppart.storage.steps import is_checkpoint_file

#: Folder of a level; followed by the session.
_FOLDER = ".spare"
#: Written and mapped at a time; in between, it can be stopped.
_PIECE_BYTES = 8 << 20


class Recycled:
    """The recycled files of a session at one level of a node.

    Attributes:
        folder: where they lie.
        unfinished: where files lie that are still being made: nobody takes them from there.
    """

    def __init__(self, root: Path, session: str, roots: Sequence[Path] = ()) -> None:
        """Below a level's root; ``roots`` are those of all levels of the node, which share its storage."""
        self._root, self._session, self._roots = root, session, roots or (root,)
        self.folder = root / f"{_FOLDER}-{session}"
        self.unfinished = root / f"{_FOLDER}-{session}-new"

    def set_aside(self, path: Path) -> None:
        """Recycle the checkpoint files of a step directory, in place of those that nobody has taken."""
        try:
            _drop(self.folder)
            with access.open_folder(path) as folder:
                access.make_folder(self.folder)
                with access.open_folder(self.folder) as there:
                    for name in folder.names():
                        if is_checkpoint_file(name):
                            folder.rename(name, there, name)
        except OSError:
            pass  # they are removed instead

    def take(self, name: Path) -> int | None:
        """Give one of them another name and open it; None if there is none. Ranks of a session may take them.

        What is not a file of this user's own (a link, a FIFO, a file of another) is not written to, and neither is a
        file that has yet another name: somebody has linked it to keep it.
        """
        try:
            found = sorted(access.names_in(self.folder))
        except OSError:
            return None
        wanted = name.name.split(".tmp-")[0].lstrip(".")
        # A process has mapped those that it has written to: of its rank, at best of the same name.
        for spare in sorted(found, key=lambda each: (_plain(each) != wanted, _rank_of(each) != _rank_of(wanted))):
            try:
                access.rename(self.folder / spare, name)
            except OSError:
                continue
            try:
                return access.open_file(name, os.O_RDWR)
            except OSError:
                with contextlib.suppress(OSError):
                    access.remove(name)
        return None

    def make(self, name: str, nbytes: int, is_wanted: Callable[[], bool]) -> bool:
        """Make a file of zeros among them, and map it; from any thread."""
        path = self.unfinished / name
        try:
            access.make_folder(path.parent)
            descriptor = access.create(path, os.O_RDWR)
        except OSError:
            return False
        made = False
        try:
            if _fill(path, descriptor, nbytes, is_wanted):
                access.make_folder(self.folder)
                access.rename(path, self.folder / name)
                made = True
        except OSError:
            pass  # full, for one: the checkpoint will say so itself, if it finds no room either
        finally:
            os.close(descriptor)
            if not made:
                with contextlib.suppress(OSError):
                    access.remove(path)
        return made

    def give_back(self) -> bool:
        """Remove those of all levels that nobody has taken, and those that are being made; True if there were any.

        Where space is short, what might be written over later must not keep from what is to be written now.
        """
        found = False
        for root in self._roots:
            level = Recycled(root, self._session)
            for folder in (level.folder, level.unfinished):
                with contextlib.suppress(OSError):
                    found |= any(map(_is_recycled, access.names_in(folder)))
                _drop(folder)
        forget_removed()
        return found

    def drop(self) -> None:
        """Remove those of this level, as far as the system lets us."""
        _drop(self.folder)
        _drop(self.unfinished)

    def drop_made(self, names: Iterable[str]) -> None:
        """Remove what one rank has made and nobody has taken, as far as the system lets us.

        Also the directories, if it was the last: whoever removes all recycled files may have done so before.
        """
        for folder in (self.folder, self.unfinished):
            for name in names:
                with contextlib.suppress(OSError):
                    access.remove(folder / name)
            with contextlib.suppress(OSError), access.open_folder(folder.parent) as above:
                above.remove_directory(folder.name)

    def drop_foreign(self) -> None:
        """Remove what other sessions have kept to be written over, as far as the system lets us."""
        with contextlib.suppress(OSError):
            for name in access.names_in(self._root):
                if name.startswith(f"{_FOLDER}-") and name != self.folder.name:
                    _drop(self._root / name)


def spare_name(name: str, number: int) -> str:
    """The name among the recycled files of one of several that are to become files of one name."""
    return f"{name}.{number}"


def _plain(name: str) -> str:
    head, _, number = name.rpartition(".")
    return head if number.isdecimal() else name


def _is_recycled(name: str) -> bool:
    return is_checkpoint_file(_plain(name))


def _rank_of(name: str) -> int | None:
    parsed = parse_part_file_name(_plain(name))
    return None if parsed is None else parsed[0]


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


def _drop(folder: Path) -> None:
    """Remove the files of a folder, and the folder, as far as the system lets us."""
    with contextlib.suppress(OSError):
        with access.open_folder(folder) as opened:
            for name in opened.names():
                if _is_recycled(name):
                    opened.remove(name)
        with access.open_folder(folder.parent) as above:
            above.remove_directory(folder.name)
