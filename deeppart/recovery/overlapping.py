"""Live leaves that share memory in another way than was saved: may all of them be had at once?"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from deeppart.errors import StructureMismatchError
from deeppart.recovery.matching import Matched
from deeppart.recovery.old_ranks import Mapped
from deeppart.state.restore.overlaps import conflicting, overlapping
from deeppart.state.tree.leaves import Array, new_array
from deeppart.state.tree.paths import readable


@dataclass(frozen=True, slots=True)
class ToFill:
    """The arrays of a live state that are to be filled.

    Attributes:
        arrays: by leaf number.
        alone: memory for those that share some with another, to be brought alone first.
    """

    arrays: dict[int, Array]
    alone: dict[int, Array]


def arrays_to_fill(matched: Matched) -> ToFill:
    """Take what is to be filled, and see which live leaves of it share memory in other ways than was saved.

    Raises:
        StructureMismatchError: what was saved as memory of its own is part of another leaf.
    """
    target = matched.target
    arrays = target.arrays()
    live = {index: arrays[index] for index in target.live if index in arrays}
    aliases = target.structure.aliases.keys() - target.tied
    untied = {index: data for index, data in target.live.items() if index in aliases}
    found = overlapping(live | untied)
    alone = {index: new_array(target.types[index]) for index in found if index not in untied}
    if wrong := [index for index in found if index in untied]:
        raise _overlap_error(matched, wrong, found)
    return ToFill(arrays, alone)


def marks(matched: Matched, to_fill: ToFill, own_leaves: Set[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """1 for each replicated leaf to be brought alone; at the end, 1 if any leaf at all is."""
    found = np.zeros(len(matched.saved.documents.structure.types) + 1, dtype=np.int64)
    found[[index for index in to_fill.alone if index not in own_leaves]] = 1
    found[-1] = bool(to_fill.alone)
    return found


def memory_alone(matched: Matched, to_fill: ToFill, replicated: list[int]) -> dict[int, Array]:
    """Memory for replicated leaves that overlap on any rank."""
    types, alone = matched.target.types, to_fill.alone
    return {index: alone[index] if index in alone else new_array(types[index]) for index in replicated}


def check_conflicts(matched: Matched, to_fill: ToFill, mapped: Mapped) -> None:
    """See whether the leaves that were brought alone can all be had at once; the live ones are as before.

    Raises:
        StructureMismatchError: one would be overwritten by another.
    """
    wanted = to_fill.alone | {index: value for index, value in mapped.arrays.items() if index in to_fill.alone}
    conflicts = conflicting({index: to_fill.arrays[index] for index in wanted}, wanted)
    if conflicts:
        raise _overlap_error(matched, conflicts, list(wanted))


def _overlap_error(matched: Matched, conflicts: list[int], among: list[int]) -> StructureMismatchError:
    paths = matched.target.structure.array_paths()
    names = [readable(paths[index]) for index in conflicts]
    others = [readable(paths[index]) for index in among if index not in conflicts]
    return StructureMismatchError(
        "live leaves that share some of their memory did not share it in this way when they were saved",
        found=f"{', '.join(names[:8])} would be overwritten by {', '.join(others[:8]) or 'one another'}",
        where=f"path {names[0]}",
        todo="build the live state so that they have their own memory, as when it was saved",
    )
