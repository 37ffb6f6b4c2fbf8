"""Recycled files: files of a retired step that the next checkpoint overwrites (docs/decisions/0006).

They are overwritten in place, so no other process may be using them. A session only recycles files from directories
named after it, through a folder named after it, so no other session can be writing to these files.
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

#: Folder of a level, followed by the session.
_FOLDER = ".spare"


class Recycled:
    """The recycled files of a session at one level of a node.

    Attributes:
        folder: the directory with these files.
    """

    def __init__(self, root: Path, session: str, roots: Sequence[Path] = ()) -> None:
        """In a level's ``root``; ``roots`` are those of all levels of the node, which share its storage."""
        self._root, self._session, self._roots = root, session, roots or (root,)
        self.folder = root / f"{_FOLDER}-{session}"

    def set_aside(self, path: Path) -> None:
        """Recycle the checkpoint files of a step directory, and remove those recycled before that are still unused."""
        try:
            _drop(self.folder)
            with access.open_folder(path) as folder:
                access.make_folder(self.folder)
                with access.open_folder(self.folder) as there:
                    for name in folder.names():
                        if is_checkpoint_file(name):
                            folder.rename(name, there, name)
        except OSError:
            pass  # the caller removes the files instead

    def take(self, name: Path) -> int | None:
        """Rename one of the files to ``name`` and open it; None if there is none. Any rank of the session may do so.

        A file of another user, anything but a regular file, and a file with further hard links are never overwritten.
        """
        try:
            found = sorted(access.names_in(self.folder))
        except OSError:
            return None
        wanted = name.name.split(".tmp-")[0].lstrip(".")
        # Prefer the same name, then the same rank: this process has probably mapped that file.
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
        """Remove the unused files of all levels to free space. Returns true if there were any."""
        found = False
        for root in self._roots:
            folder = Recycled(root, self._session).folder
            with contextlib.suppress(OSError):
                found |= any(map(is_checkpoint_file, access.names_in(folder)))
            _drop(folder)
        forget_removed()
        return found

    def drop(self) -> None:
        """Remove the files of this level, ignoring errors."""
        _drop(self.folder)

    def drop_foreign(self) -> None:
        """Remove the recycled files of other sessions, ignoring errors."""
        with contextlib.suppress(OSError):
            for name in access.names_in(self._root):
                if name.startswith(f"{_FOLDER}-") and name != self.folder.name:
                    _drop(self._root / name)


def _rank_of(name: str) -> int | None:
    parsed = parse_part_file_name(name)
    return None if parsed is None else parsed[0]


def _drop(folder: Path) -> None:
    """Remove a folder with its checkpoint files, ignoring errors."""
    with contextlib.suppress(OSError):
        with access.open_folder(folder) as opened:
            for name in opened.names():
                if is_checkpoint_file(name):
                    opened.remove(name)
        with access.open_folder(folder.parent) as above:
            above.remove_directory(folder.name)
