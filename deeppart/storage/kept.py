"""What lies in the place of another file, kept under a second name while that other file takes the place.

Such a file may be the only one of its part: somebody has exchanged names. It is found under the name that it is kept by
when files are repaired again (:mod:`deeppart.offline.inspect.misplaced`), and goes with the step directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from types import TracebackType

from deeppart import access
from deeppart.errors import StorageError
from deeppart.storage.links import link
from deeppart.storage.refusals import storage_error

_KEPT = re.compile(r"\.(.+)\.kept-[0-9a-f]{8}", re.ASCII)


def is_kept_name(name: str) -> bool:
    """True for a name that :class:`Kept` gives."""
    return _KEPT.fullmatch(name) is not None


def kept_path(path: Path) -> Path:
    """A new name beside a file, for what lies there now."""
    return path.with_name(f".{path.name}.kept-{os.urandom(4).hex()}")


class Kept:
    """Keeps what lies in a place, if asked to; a context manager around what may put another file there.

    Attributes:
        name: the second name of what lay there; None where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: Path | None = None

    def keep(self) -> None:
        """Give what lies there a second name; a second call does nothing."""
        if self.name is not None:
            return
        name = kept_path(self._path)
        if not link(self._path, name):
            raise StorageError(
                "what lies in the place of a file may be all there is, and cannot be kept under another name",
                where=str(self._path),
                todo="move it to where it belongs by hand (`deeppart verify` says what it is), and repair again",
            )
        try:
            access.sync_directory(name.parent)
        except OSError as error:
            raise storage_error("cannot make a second name of a file durable", error, name) from error
        self.name = name

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The second name goes if the first one has stayed."""
        if self.name is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(access.lstat(self._path), access.lstat(self.name)):
                access.remove(self.name)
                self.name = None
