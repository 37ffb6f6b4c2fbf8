"""Live leaves that share memory in another way than was saved: may all of them be had at once?"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.model.boxes import Box
from deeppart.recovery.matching import Matched
from deeppart.recovery.old_ranks import Mapped
from deeppart.state.document.ties import address, conflicting, overlapping
from deeppart.state.document.whole import ShardSource, WholeTensor
from deeppart.state.restore.composites import leaves_to_check
from deeppart.state.restore.merge import check_composites
from deeppart.state.restore.scatter import BoxScatter, LiveBox
from deeppart.state.tree.leaves import Array, new_array
from deeppart.state.tree.paths import readable
from deeppart.state.tree.sharded import read_shards


@dataclass(frozen=True, slots=True)
class ToFill:
    """The arrays of a live state that are to be filled.

    Attributes:
        arrays: by leaf number.
        alone: memory for those that share some with another, or are components of tensors that are made of others, to
            be brought alone first.
        boxed: arrays of leaves that are filled box by box.
        boxes: fills these, and the shards of live sharded tensors.
        components: which of ``alone`` are components.
    """

    arrays: dict[int, Array]
    alone: dict[int, Array]
    boxed: dict[int, Array]
    boxes: BoxScatter
    components: frozenset[int] = frozenset()


def arrays_to_fill(matched: Matched) -> ToFill:
    """Take what is to be filled, and see which live leaves of it share memory in other ways than was saved."""
    target = matched.target
    arrays = target.arrays()
    live = {index: arrays[index] for index in target.live if index in arrays}
    aliases = target.structure.aliases.keys() - target.tied
    untied = {index: data for index, data in (target.live | target.casts).items() if index in aliases}
    untied |= {index: data for index, data in target.casts.items() if index not in target.tied}
    found = overlapping(live | untied)
    alone = {index: new_array(target.types[index]) for index in found if index not in untied}
    components = {index for index in leaves_to_check(target) if index in arrays and index not in alone}
    alone |= {index: new_array(target.types[index]) if index in live else arrays[index] for index in components}
    if wrong := [index for index in found if index in untied]:
        raise _overlap_error(matched, wrong, found)
    boxed = target.boxed_arrays()
    wanted = live_boxes(matched, boxed)
    _check_boxes(matched, wanted, arrays)
    return ToFill(arrays, alone, boxed | dict(target.created), BoxScatter(wanted), frozenset(components))


def live_boxes(matched: Matched, boxed: Mapping[int, Array]) -> dict[int, tuple[WholeTensor, list[LiveBox]]]:
    """For each leaf that is filled box by box, its tensor, and the arrays of this rank that hold boxes of it."""
    target, tensors = matched.target, matched.saved.tensors()
    if matched.saved.same_world:
        tensors = {index: tensor.for_rank(matched.rank) for index, tensor in tensors.items()}
    found: dict[int, list[LiveBox]] = {index: [LiveBox.whole(array)] for index, array in boxed.items()}
    for index, leaf in target.sharded.items():
        arrays = target.cast_shards.get(index) or [matched.flat.data[number] for number in leaf.numbers]
        found[index] = [LiveBox(*each) for each in zip(arrays, leaf.boxes, strict=True)]
    for index, tensor in target.created.items():
        shards = read_shards(tensor, "a created leaf")
        found[index] = [LiveBox(*each) for each in zip(shards.tensors, shards.boxes, strict=True)]
    return {
        index: (tensors[index] if index in tensors else matched.saved.plain_tensor(index), boxes)
        for index, boxes in found.items()
    }


def _check_boxes(
    matched: Matched, wanted: Mapping[int, tuple[WholeTensor, list[LiveBox]]], arrays: Mapping[int, Array]
) -> None:
    """Refuse live shards that share memory with anything that is to get other bytes."""
    if not wanted:
        return
    places = [
        (index, tensor, box)
        for index, (tensor, boxes) in wanted.items()
        for box in (_to_be_cast(matched, index) or boxes)
    ]
    live = {~number: array for number, array in arrays.items() if number in matched.target.live}
    live |= {~number: array for number, array in matched.target.casts.items()}
    found = overlapping(live | {place: box.array for place, (_, _, box) in enumerate(places)})
    if all(place < 0 for place in found) or _are_twins([places[place] for place in found if place >= 0], len(found)):
        return
    paths = matched.target.structure.array_paths()
    names = [readable(paths[~place if place < 0 else places[place][0]]) for place in found]
    raise StructureMismatchError(
        "live shards share memory with other live leaves, but were saved with memory of their own",
        found=", ".join(names[:8]),
        where=f"path {names[0]}",
        todo="build the live state so that they have their own memory, as when it was saved",
    )


def _to_be_cast(matched: Matched, index: int) -> list[LiveBox]:
    """The live shards of a tensor of another dtype, which are written last; [] of any other."""
    if index not in matched.target.cast_shards:
        return []
    leaf = matched.target.sharded[index]
    arrays = [matched.flat.data[number] for number in leaf.numbers]
    return [LiveBox(*each) for each in zip(arrays, leaf.boxes, strict=True)]


def _are_twins(found: list[tuple[int, WholeTensor, LiveBox]], expected: int) -> bool:
    """True if arrays that share memory are the very same ones, and get the same bytes: tied parameters."""
    groups: dict[tuple[object, ...], list[tuple[WholeTensor, LiveBox]]] = {}
    for _, tensor, box in found:
        groups.setdefault(_identity(box), []).append((tensor, box))
    alike = [len(group) > 1 and len({_sources(*each) for each in group}) == 1 for group in groups.values()]
    firsts = {place: group[0][1].array for place, group in enumerate(groups.values())}
    return len(found) == expected and all(alike) and not overlapping(firsts)


def _sources(tensor: WholeTensor, live: LiveBox) -> tuple[Box, frozenset[ShardSource]]:
    """What an array gets, and from where: of two tied tensors, ranks may have had one leaf here, and two elsewhere."""
    return live.box, frozenset(each for each in tensor.sources if each.box.common(live.box) is not None)


def _identity(box: LiveBox) -> tuple[object, ...]:
    """What two arrays have in common that are the same elements in the same order."""
    array = box.array
    strides = array.stride() if isinstance(array, torch.Tensor) else array.strides
    return address(array), tuple(array.shape), tuple(strides), str(array.dtype)


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
    """See whether the leaves that were brought alone can all be had at once, and make tensors; the live ones are as
    before.
    """
    wanted = to_fill.alone | {index: value for index, value in mapped.arrays.items() if index in to_fill.alone}
    check_composites(matched.target, wanted)
    wanted = {index: array for index, array in wanted.items() if index not in to_fill.components}
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
