"""Recycled files: those of a retired step, over which the next checkpoint writes (docs/decisions/0006).

They are written in place, so it matters who else may have the file. A session sets aside only files of directories that
carry its own name, in a folder that does, too, and takes them from there alone: no other session can be writing to what
is written over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from deeppart import access
from deeppart.mapped import forget_removed
from deeppart.part import parse_part_file_name
from deeppart.storage.steps import is_checkpoint_file

#: Folder of a level; followed by the session.
_FOLDER = ".spare"


class Recycled:
    """The recycled files of a session at one level of a node.

    Attributes:
        folder: where they lie.
    """

    def __init__(self, root: Path, session: str, roots: Sequence[Path] = ()) -> None:
        """Below a level's root; ``roots`` are those of all levels of the node, which share its storage."""
        self._root, self._session, self._roots = root, session, roots or (root,)
        self.folder = root / f"{_FOLDER}-{session}"

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
        for spare in sorted(found, key=lambda each: (each != wanted, _rank_of(each) != _rank_of(wanted))):
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

    def give_back(self) -> bool:
        """Remove those of all levels that nobody has taken; True if there were any.

        Where space is short, what might be written over later must not keep from what is to be written now.
        """
        found = False
        for root in self._roots:
            folder = Recycled(root, self._session).folder
            with contextlib.suppress(OSError):
                found |= any(map(is_checkpoint_file, access.names_in(folder)))
            _drop(folder)
        forget_removed()
        return found

    def drop(self) -> None:
        """Remove those of this level, as far as the system lets us."""
        _drop(self.folder)

    def drop_foreign(self) -> None:
        """Remove what other sessions have kept to be written over, as far as the system lets us."""
        with contextlib.suppress(OSError):
            for name in access.names_in(self._root):
                if name.startswith(f"{_FOLDER}-") and name != self.folder.name:
                    _drop(self._root / name)


def _rank_of(name: str) -> int | None:
    parsed = parse_part_file_name(name)
    return None if parsed is None else parsed[0]


def _drop(folder: Path) -> None:
    """Remove the files of a folder, and the folder, as far as the system lets us."""
    with contextlib.suppress(OSError):
        with access.open_folder(folder) as opened:
            for name in opened.names():
                if is_checkpoint_file(name):
                    opened.remove(name)
        with access.open_folder(folder.parent) as above:
            above.remove_directory(folder.name)
