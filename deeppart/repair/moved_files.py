"""Files of a checkpoint directory that are not what their names say: moved, exchanged or copied by hand.

Such a file may be the only one of its part. It is named, with the command that moves it back; nothing here moves files,
and no repair writes over it while there is no other sound file of the same part.
"""

from __future__ import annotations

import shlex

from deeppart.errors import FormatError, StorageError
from deeppart.model import Attempt
from deeppart.part import HEADER_BYTES, PartHeader, is_parity_file_name, parse_part_file_name
from deeppart.storage import Store, read_step, step_name


def header_of(store: Store, key: str) -> PartHeader | None:
    """The sound header with which a file begins; None if there is none, or it cannot be read."""
    try:
        with store.open(key) as source:
            return PartHeader.decode(source.read_at(0, HEADER_BYTES), where=store.where(key))
    except (FormatError, StorageError):
        return None


def misnamed(store: Store, key: str, attempt: Attempt | None) -> PartHeader | None:
    """The header of a file that is another one than its name and ``attempt`` say; None if it is not, or unreadable.

    ``attempt`` None: any will do.
    """
    found, name = header_of(store, key), key.rpartition("/")[2]
    if found is None or is_parity_file_name(name):
        return found
    parsed = parse_part_file_name(name)
    rank = parsed[0] if parsed is not None else found.rank
    return None if found.rank == rank and attempt in (None, found.attempt) else found


def advice(store: Store, key: str, found: PartHeader, *, is_only: bool = False) -> str:
    """What a misnamed file is, and what to do with it; ``is_only``: there is no other sound file of its part."""
    what = f"by its contents it is part {found.rank} of step {found.attempt.step}"
    origin = _origin(store, found)
    if origin is None:
        return f"{what}, which does not belong in this directory: move it out"
    where = store.where(origin)
    move = f"{what}: `mv {shlex.quote(store.where(key))} {shlex.quote(where)}`"
    if not _exists(store, origin):
        return move
    if not is_only and misnamed(store, origin, found.attempt) is None and header_of(store, origin) is not None:
        return f"{what}, as {where} is: if that is sound, --repair writes the right one here"
    return f"{move}, after moving away what lies there"


def _exists(store: Store, key: str) -> bool:
    try:
        return store.stat(key) is not None
    except (FormatError, StorageError):  # something is
        return True


def _origin(store: Store, found: PartHeader) -> str | None:
    """The key under which the manifest of its step has what a file holds; None if there is no such manifest."""
    step = read_step(store, found.attempt.key, None)
    if step.error is not None or step.manifest.attempt != found.attempt:
        return None
    return f"{step_name(step.key)}/{step.manifest.parts[found.rank].file}"
