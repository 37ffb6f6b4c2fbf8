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
    PartReader,
    is_parity_file_name,
    parse_base_file_name,
    parse_node_file_name,
    parse_part_file_name,
    parse_section_path,
)
from deeppart.storage.manifests import read_manifest
from deeppart.storage.steps import list_steps, step_directory


def file_of(path: Path) -> Path:
    """The file that a path leads to: of a section, the node file."""
    place = parse_section_path(path)
    return path if place is None else Path(place.file)


def header_of(path: Path) -> PartHeader | None:
    """The sound header with which a file begins; None if there is none, or it cannot be read."""
    try:
        with FileSource(file_of(path)) as source:
            return PartHeader.decode(source.read_at(0, HEADER_BYTES), where=str(path))
    except (FormatError, StorageError):
        return None


def misnamed(path: Path, attempt: Attempt | None) -> PartHeader | None:
    """The header of what lies in a place instead of what belongs there; None if that is there, or nothing tells.

    ``attempt`` is what the place requires; None, of a base, if any will do. Of a node file, its first section counts.
    """
    found = header_of(path)
    if found is None or is_parity_file_name(path.name):
        return found
    if (base := parse_base_file_name(path.name)) is not None:
        return None if (found.rank, _index_digest(path) or base[2]) == (base[0], base[2]) else found
    named = parse_node_file_name(file_of(path).name) or parse_part_file_name(path.name)
    rank = named[0] if named is not None else found.rank
    return None if found.rank == rank and attempt in (None, found.attempt) else found


def advice(path: Path, found: PartHeader, *, is_only: bool = False) -> str:
    """What a misnamed file is, and what to do with it; ``is_only``: there is no other sound file of its part."""
    file, what = file_of(path), f"by its contents it is part {found.rank} of step {found.attempt.step}"
    own = _own_place(file, found)
    if own is None:
        return f"{what}, whose place is not here: move it out of this directory"
    move = f"{what}: `mv {shlex.quote(str(file))} {shlex.quote(str(own))}`"
    if not access.exists(own):
        return move
    if not is_only and misnamed(own, found.attempt) is None and header_of(own) is not None:
        return f"{what}, as {own} is: if that is sound, --repair writes the right one here"
    return f"{move}, after moving away what lies there"


def _own_place(file: Path, found: PartHeader) -> Path | None:
    """Where the manifest of its step has what a file holds; None if there is no such manifest."""
    root = file.parent.parent
    key = next((key for key in list_steps(root) if key.may_hold(found.attempt)), None)
    if key is None:
        return None
    try:
        manifest = read_manifest(root, key, None)
    except (OSError, FormatError, StorageError):
        return None
    if manifest.attempt != found.attempt:
        return None
    own = file_of(step_directory(root, key) / manifest.parts[found.rank].file)
    is_node_file, is_in_one = (parse_node_file_name(each.name) is not None for each in (file, own))
    return own if is_node_file == is_in_one else None


def _index_digest(path: Path) -> str | None:
    try:
        with FileSource(path) as source:
            return PartReader(source, where=str(path)).index_digest
    except (FormatError, StorageError):
        return None
