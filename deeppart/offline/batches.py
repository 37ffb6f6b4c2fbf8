"""Leaves of a checkpoint in batches, so that little of it is in memory at a time."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator

from deeppart.errors import FormatError, StateError, StorageError
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.tree.leaves import Array
from deeppart.state.tree.paths import readable
from deeppart.storage.steps import step_is_retired

#: Leaves are read so many bytes at a time, or one by one where they are larger.
BATCH_BYTES = 256 << 20


def owner_of(checkpoint: OpenCheckpoint, leaf: int) -> int:
    """The leaf that has the bytes of this one: itself, or the one whose memory it shares."""
    alias = checkpoint.structure.aliases.get(leaf)
    return leaf if alias is None else alias.owner


def batches(checkpoint: OpenCheckpoint, leaves: Collection[int]) -> Iterator[set[int]]:
    """Leaves to be read together, at most :data:`BATCH_BYTES` of them: those that share memory in one go."""
    types = checkpoint.target.types
    families: dict[int, set[int]] = {}
    for leaf in sorted(leaves):
        families.setdefault(owner_of(checkpoint, leaf), set()).add(leaf)
    batch: set[int] = set()
    room = BATCH_BYTES
    for owner, family in families.items():
        if batch and room < types[owner].nbytes:
            yield batch
            batch, room = set(), BATCH_BYTES
        batch |= family
        room -= types[owner].nbytes
    if batch:
        yield batch


def repeats(checkpoint: OpenCheckpoint, leaf: int) -> StateError | None:
    """The refusal of a leaf that is small in the checkpoint because its elements lie at one address, as ``expand()``
    makes it, and would be large anywhere else; None if it is none.
    """
    types = checkpoint.target.types
    nbytes, stored = types[leaf].nbytes, types[owner_of(checkpoint, leaf)].nbytes
    if nbytes <= max(stored, BATCH_BYTES):
        return None
    return StateError(
        "a leaf repeats its few bytes, as expand() makes it, and would be too large by itself",
        expected=f"at most {BATCH_BYTES} bytes",
        found=f"{nbytes} bytes of {types[leaf]}, of which {stored} are stored",
        where=f"path {readable(checkpoint.structure.array_paths()[leaf])}",
        todo="name the other leaves as KEYS",
    )


def read_sound(
    checkpoint: OpenCheckpoint, leaves: set[int]
) -> tuple[dict[int, Array], dict[int, FormatError | StorageError]]:
    """Read leaves, and pass over those of which a byte is damaged or missing."""
    try:
        checkpoint.check(leaves)
        arrays = checkpoint.read(leaves)
    except (FormatError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno == errno.ENOENT and step_is_retired(checkpoint.directory):
            raise
        if len(leaves) == 1:
            return {}, dict.fromkeys(leaves, error)
    else:
        return {leaf: arrays[leaf] for leaf in leaves}, {}
    found: dict[int, Array] = {}
    refused: dict[int, FormatError | StorageError] = {}
    for leaf in sorted(leaves):
        read, errors = read_sound(checkpoint, {leaf})
        found |= read
        refused |= errors
    return found, refused
