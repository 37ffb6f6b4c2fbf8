"""Files of a checkpoint directory that are not what their names say: moved, exchanged or copied by hand.

Such a file may be the only one of its part. It is named, with the command that moves it back; nothing here moves files,
and no repair writes over it while there is no other sound file of the same part.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from deeppart import access
from deeppart.errors import FormatError, StorageError
from deeppart.model import Attempt
from deeppart.part import (
    HEADER_BYTES,
    FileSource,
    PartHeader,
    is_parity_file_name,
    parse_part_file_name,
)
from deeppart.storage import PosixStore, list_steps, read_manifest, step_name


def header_of(path: Path) -> PartHeader | None:
    """The sound header with which a file begins; None if there is none, or it cannot be read."""
    try:
        with FileSource(path) as source:
            return PartHeader.decode(source.read_at(0, HEADER_BYTES), where=str(path))
    except (FormatError, StorageError):
        return None


def misnamed(path: Path, attempt: Attempt | None) -> PartHeader | None:
    """The header of a file that is another one than its name and ``attempt`` say; None if it is not, or unreadable.

    ``attempt`` None: any will do.
    """
    found = header_of(path)
    if found is None or is_parity_file_name(path.name):
        return found
    named = parse_part_file_name(path.name)
    rank = named[0] if named is not None else found.rank
    return None if found.rank == rank and attempt in (None, found.attempt) else found


def advice(path: Path, found: PartHeader, *, is_only: bool = False) -> str:
    """What a misnamed file is, and what to do with it; ``is_only``: there is no other sound file of its part."""
    what = f"by its contents it is part {found.rank} of step {found.attempt.step}"
    origin = _origin(path, found)
    if origin is None:
        return f"{what}, which does not belong in this directory: move it out"
    move = f"{what}: `mv {shlex.quote(str(path))} {shlex.quote(str(origin))}`"
    if not access.exists(origin):
        return move
    if not is_only and misnamed(origin, found.attempt) is None and header_of(origin) is not None:
        return f"{what}, as {origin} is: if that is sound, --repair writes the right one here"
    return f"{move}, after moving away what lies there"


def _origin(path: Path, found: PartHeader) -> Path | None:
    """Where the manifest of its step has what a file holds; None if there is no such manifest."""
    root = path.parent.parent
    store = PosixStore(root)
    key = next((key for key in list_steps(store) if key == found.attempt.key), None)
    if key is None:
        return None
    try:
        manifest = read_manifest(store, key, None)
    except (FormatError, StorageError):
        return None
    return root / step_name(key) / manifest.parts[found.rank].file if manifest.attempt == found.attempt else None
