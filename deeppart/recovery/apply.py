"""Writes a recovered step into the live state, collectively.

Before the first live byte changes, the live state is matched with the structure, the bytes that it needs are read,
per-rank leaves are mapped, and user functions are called; any error up to then is raised on every rank and leaves the
state unchanged. A source that fails at any time before objects take their state is raised as SourcesFailedError on
every rank: then the same arrays are filled again from other sources. Each stage takes the result of the one before:
documents, saved step, matched state, bytes in memory, mapped values, arrays to fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import torch

from deeppart.errors import (
    CommError,
    DeeppartError,
    DeeppartWarning,
    RemoteRankError,
    StateError,
    StructureMismatchError,
)
from deeppart.model import Box, RestoreReport
from deeppart.recovery.absent import share_out_absent
from deeppart.recovery.candidates import Recovered, SourcesFailedError, begun, check_chunks, failure_of, gather_failures
from deeppart.recovery.distribute import Delivery, Failure
from deeppart.recovery.matching import Matched, check_step, match, notices
from deeppart.recovery.narrowing import LiveState, narrowed, with_own_of_all
from deeppart.recovery.old_ranks import OldLeaves, map_old_leaves, memory_for_old_leaves, wanted_of_old
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.saved import SavedStep, load_step
from deeppart.recovery.tables import NodeCopies, Tables, fetch_spans, find_copies, share_tables, without_unneeded
from deeppart.state.paths import PerRankPolicies, Replication, readable
from deeppart.state.pieces import ANY_PART, Source, WantedPieces
from deeppart.state.restore import (
    LiveBox,
    Scatter,
    Target,
    Wanted,
    check_composites,
    leaves_to_check,
    put,
    tie,
)
from deeppart.state.tensors import Array, new_array, overlaps_itself
from deeppart.state.tree import ArrayLeaf, ValueLeaf, address, assign, conflicting, overlapping, walk_tree

T = TypeVar("T")
_MATCHING = "matching the live state with the checkpoint failed"
_COMPARING = "live leaves that share some of their memory could not be compared"
_HANDING = "handing what was restored to the live state failed"
_TODO = "fix what that rank reports"


def restore_state(
    ranks: Ranks,
    recovered: Recovered,
    live: LiveState,
    policies: PerRankPolicies,
    replicated: str | Mapping[str, str],
) -> tuple[RestoreReport, list[DeeppartWarning], list[str]]:
    """Write a recovered step into the live state (collective).

    If it fails, references to the parts are dropped: an error that is kept, or its traceback, would keep their
    memory, which may be locked.
    """
    try:
        return _restore_state(ranks, recovered, live, policies, Replication(replicated))
    except DeeppartError as error:
        if not isinstance(error, CommError) or isinstance(error, RemoteRankError):
            recovered.forget()  # not on success: messages may still be sent from there
        raise


def _restore_state(
    ranks: Ranks,
    recovered: Recovered,
    live: LiveState,
    policies: PerRankPolicies,
    replication: Replication,
) -> tuple[RestoreReport, list[DeeppartWarning], list[str]]:
    what = f"restore of step {recovered.attempt.step}"
    whole = load_step(ranks, recovered)
    tables = share_tables(ranks, recovered, whole.documents.structure)
    matched, old, to_fill, needed = _match(ranks, recovered, tables, whole, live, policies, replication, what)
    tables = without_unneeded(ranks, fetch_spans(ranks, tables, needed.of(ANY_PART), what), needed, what)
    check_chunks(ranks, recovered, {view.part: ~view.is_unread for view in tables.indexes})
    with closing(find_copies(ranks, recovered, f"{what}, parts in the memory of nodes")) as copies:
        filling = _Filling(ranks, recovered, copies, Delivery(ranks, recovered, tables, copies), what)
        if old:
            to_fill = filling.map_old_ranks(matched, old)
        filling.compare_overlaps(matched, to_fill)
        filling.write(matched, to_fill)
    report = report_of(matched, tables.loaded_bytes, tables.saved_bytes)
    return report, notices(matched, ranks.comm.size), list(matched.own.names)


def _match(
    ranks: Ranks,
    recovered: Recovered,
    tables: Tables,
    whole: SavedStep,
    live: LiveState,
    policies: PerRankPolicies,
    replication: Replication,
    what: str,
) -> tuple[Matched, OldLeaves, ToFill, WantedPieces]:
    """Match the live state (collective); also memory for the old ranks' leaves that are needed, the arrays to fill, and
    the pieces that all of these need.
    """
    comm, flat, request = ranks.comm, live.flat, live.request
    saved, choice = ranks.together(lambda: narrowed(whole, flat, request, live.outermost), _MATCHING, what)
    saved = with_own_of_all(saved, whole, comm, what, ranks.timeout)
    held = ranks.together(lambda: check_step(saved, tables, recovered, policies, comm), _MATCHING, what)
    share_out_absent(saved, flat, choice, ranks, what, replication.in_parts)

    def matched() -> tuple[Matched, OldLeaves, ToFill, WantedPieces]:
        found = match(saved, held, flat, choice, policies, comm.rank, cast=request.cast)
        old, to_fill = memory_for_old_leaves(found), arrays_to_fill(found)
        return found, old, to_fill, wanted_pieces(chain(to_fill.wanted, wanted_of_old(old)))

    return ranks.together(matched, _MATCHING, what)


class _Filling:
    """Fills arrays with the bytes of a step that were read. Every method is collective."""

    def __init__(self, ranks: Ranks, recovered: Recovered, copies: NodeCopies, delivery: Delivery, what: str) -> None:
        self._ranks, self._recovered, self._copies = ranks, recovered, copies
        self._delivery, self._what = delivery, what

    def map_old_ranks(self, matched: Matched, old: OldLeaves) -> ToFill:
        """Take rank 0's per-rank values, or call the caller's function for this rank's; returns the arrays to fill."""
        rank, size = self._ranks.rank, self._ranks.comm.size

        def mapped() -> ToFill:
            map_old_leaves(matched, old, rank, size)
            return arrays_to_fill(matched)

        return self._bring(wanted_of_old(old), mapped, _MATCHING)

    def compare_overlaps(self, matched: Matched, to_fill: ToFill) -> None:
        """Live leaves that share memory are received separately first, and compared."""
        overlapping = self._ranks.comm.maximum(np.array([bool(to_fill.components or to_fill.shared)], dtype=np.int64))
        if self._ranks.finish(overlapping, self._what).any():
            self._bring(wanted(matched, to_fill.all_alone()), lambda: check_conflicts(matched, to_fill), _COMPARING)

    def write(self, matched: Matched, to_fill: ToFill) -> None:
        """Fill the arrays, restore ties and put everything into its containers. Changes the live state."""
        target = matched.target

        def hand_over() -> None:
            put(target, to_fill.complete(target), matched.flat)

        try:
            self._bring(to_fill.wanted, hand_over, _HANDING, has_begun=True)
        except DeeppartError as error:
            raise begun(error) from error.__cause__

    def _bring(
        self,
        needed: Iterable[Wanted],
        then: Callable[[], T],
        failed: str,
        *,
        has_begun: bool = False,
    ) -> T:
        """Fill arrays with the bytes that they need, and do something with them."""
        failure = self._delivery.bring(Scatter(needed))
        self._check_sources(failure, has_begun=has_begun)

        def do() -> T:
            if failure is not None:
                raise failure.error
            return then()

        return self._ranks.together(do, failed, self._what, _TODO if has_begun else None)

    def _check_sources(self, failure: Failure | None, *, has_begun: bool = False) -> None:
        """Raise SourcesFailedError if a source failed on any rank, or may have changed since its bytes were checked."""
        problems: list[tuple[int, Exception | None]]
        problems = [(part, opened.problem()) for part, opened in self._recovered.mine.items()]
        problems += [(part, copy.problem()) for (part, _), copy in self._copies.mine.items()]
        if failure is not None and failure.part is not None:
            problems.append((failure.part, failure.error))
        reads, rank = self._recovered.reads, self._ranks.rank
        mine = [failure_of(reads[part], rank, error) for part, error in problems if error is not None]
        if failed := gather_failures(self._ranks, mine, self._what):
            raise SourcesFailedError(failed, has_begun=has_begun)


@dataclass(frozen=True, slots=True)
class ToFill:
    """The arrays of a live state that are to be filled.

    Attributes:
        boxes: the memory that receives each leaf, by leaf number: all of it, or this rank's shards.
        wanted: the bytes of the parts that go there.
        components: memory for components of composite tensors, which are received separately first, by leaf number.
        shared: leaf numbers, arrays that share memory otherwise than when they were saved, and memory to receive each
            separately first.
    """

    boxes: dict[int, list[LiveBox]]
    wanted: Sequence[Wanted]
    components: dict[int, Array]
    shared: Sequence[tuple[int, LiveBox, LiveBox]]

    def all_alone(self) -> Iterator[tuple[int, LiveBox]]:
        """The memory for leaves that are received separately first."""
        yield from ((index, LiveBox.whole(array)) for index, array in self.components.items())
        yield from ((index, memory) for index, _, memory in self.shared)

    def complete(self, target: Target) -> dict[int, Array]:
        """Fill what is not received: mapped leaves, aliases, and live arrays of another dtype. Returns all arrays."""
        sharded = {index: place.item for index, place in target.places.items() if place.is_sharded}
        arrays = {index: boxes[0].array for index, boxes in self.boxes.items() if index not in sharded}
        for index, value in target.mapped.items():
            assign(arrays[index], value)
        tie(target, arrays)
        for index, place in target.places.items():
            if target.is_cast(index):
                received = self.boxes[index] if place.is_sharded else [LiveBox.whole(arrays[index])]
                for live, memory in zip(place.boxes, received, strict=True):
                    assign(live.array, memory.array)
        return arrays | sharded


def arrays_to_fill(matched: Matched) -> ToFill:
    """Collect the arrays to fill, and find live leaves that share memory in other ways than saved."""
    target = matched.target
    check_writable(matched)
    boxes = {index: _memory_for(target, index) for index in target.numbers()}
    components = {
        index: boxes[index][0].array if target.live(index) is None else new_array(target.types[index])
        for index in leaves_to_check(target)
        if index in boxes
    }
    shared = [(index, live, _separate(target, index, live.box)) for index, live in _shared_otherwise(matched)]
    everything = ((index, live) for index, memory in boxes.items() for live in memory)
    return ToFill(boxes, list(wanted(matched, everything)), components, shared)


def check_writable(matched: Matched) -> None:
    """Raise StateError for a live array that cannot be written in place."""
    saved, target = matched.saved, matched.target
    arrays = [(index, box.array) for index, place in target.places.items() for box in place.boxes]
    for index, data in arrays:
        if index not in target.tied and overlaps_itself(data):
            raise StateError(
                "a live array has several elements at one address and cannot be restored in place",
                found=f"shape {list(data.shape)}, as expand() makes it",
                where=f"path {readable(saved.structure.paths()[index])}",
                todo="give restore a contiguous one: clone() it",
            )
    for index, data in arrays:
        if isinstance(data, np.ndarray) and not data.flags.writeable:
            raise StateError(
                "a live array is read-only and cannot be restored in place",
                where=f"path {readable(saved.structure.paths()[index])}",
                todo="give restore a writable array",
            )


def _memory_for(target: Target, index: int) -> list[LiveBox]:
    """What receives the bytes of a leaf: its place, or new memory, if it has none or is of another dtype there."""
    place = target.places.get(index)
    if place is None:
        return [LiveBox.whole(new_array(target.types[index]))]
    return [_separate(target, index, live.box) for live in place.boxes] if target.is_cast(index) else place.boxes


def _separate(target: Target, index: int, box: Box) -> LiveBox:
    """New memory for a box of a leaf."""
    return LiveBox(new_array(replace(target.types[index], shape=box.sizes)), box)


def _shared_otherwise(matched: Matched) -> list[tuple[int, LiveBox]]:
    """Live arrays and shards that share memory otherwise than when they were saved: their saved bytes may differ.

    What only becomes what was saved after all is received, as aliases and arrays of another dtype do, is not compared.
    """
    target = matched.target
    untied = [(index, place) for index, place in target.places.items() if index not in target.tied]
    live = [(index, box) for index, place in untied for box in place.boxes]
    found = [live[number] for number in overlapping({number: box.array for number, (_, box) in enumerate(live)})]
    if not found or (all(target.places[index].is_sharded for index, _ in found) and _are_twins(matched, found)):
        return []
    numbers = [index for index, _ in found]
    if wrong := [index for index in numbers if target.is_cast(index) or index in target.structure.aliases]:
        raise _overlap_error(matched, wrong, numbers)
    return found


def sources_of(matched: Matched) -> Callable[[int, Box], Iterable[Source]]:
    """A function that returns the pieces with bytes of a box of a leaf."""
    saved, target = matched.saved, matched.target
    aliases, rank = saved.structure.aliases, matched.rank if saved.same_world else None

    def of(index: int, box: Box) -> Iterable[Source]:
        if index in saved.structure.divisions:
            return matched.held.sources(index, box, rank)
        if index in target.own and not saved.same_world:
            return ()  # mapped from leaves of the old ranks
        # A leaf that is no longer an alias here is filled with the bytes of its saved owner.
        leaf = aliases[index].owner if index in aliases and index not in target.structure.aliases else index
        part = matched.rank if index in target.own else ANY_PART
        return (Source(part, leaf, 0, Box.whole(target.types[index].shape)),)

    return of


def wanted(matched: Matched, wanting: Iterable[tuple[int, LiveBox]]) -> Iterator[Wanted]:
    """The bytes of the parts that go into arrays of this rank."""
    sources, types = sources_of(matched), matched.target.types
    for index, live in wanting:
        for source in sources(index, live.box):
            yield Wanted(source, live, types[index].itemsize, f"leaf {index}")


def _are_twins(matched: Matched, found: list[tuple[int, LiveBox]]) -> bool:
    """True if arrays that share memory are identical and get the same bytes: tied parameters."""
    sources = sources_of(matched)

    def gets(index: int, live: LiveBox) -> tuple[Box, frozenset[Source]]:
        return live.box, frozenset(sources(index, live.box))

    groups: dict[tuple[object, ...], list[tuple[int, LiveBox]]] = {}
    for index, box in found:
        groups.setdefault(_identity(box), []).append((index, box))
    alike = [len(group) > 1 and len({gets(*each) for each in group}) == 1 for group in groups.values()]
    return all(alike) and not overlapping({place: group[0][1].array for place, group in enumerate(groups.values())})


def _identity(box: LiveBox) -> tuple[object, ...]:
    """Equal for arrays with the same elements in the same order."""
    array = box.array
    strides = array.stride() if isinstance(array, torch.Tensor) else array.strides
    return address(array), tuple(array.shape), tuple(strides), str(array.dtype)


def check_conflicts(matched: Matched, to_fill: ToFill) -> None:
    """Check that leaves that share memory can all have their saved bytes, and that composite tensors can be made.
    The live leaves are unchanged afterwards.
    """
    mapped = matched.target.mapped
    components = {index: mapped.get(index, memory) for index, memory in to_fill.components.items()}
    check_composites(matched.target, components)
    live = {place: each.array for place, (_, each, _) in enumerate(to_fill.shared)}
    wanted = {place: mapped.get(index, memory.array) for place, (index, _, memory) in enumerate(to_fill.shared)}
    if conflicts := conflicting(live, wanted):
        leaves = [index for index, _, _ in to_fill.shared]
        raise _overlap_error(matched, [leaves[place] for place in conflicts], leaves)


def _overlap_error(matched: Matched, conflicts: list[int], among: list[int]) -> StructureMismatchError:
    paths = matched.target.structure.paths()
    names = [readable(paths[index]) for index in conflicts]
    others = [readable(paths[index]) for index in among if index not in conflicts]
    return StructureMismatchError(
        "live leaves that share memory were saved as separate leaves, or shared it in another way",
        found=f"{', '.join(names[:8])} would be overwritten by {', '.join(others[:8]) or 'one another'}",
        where=f"path {names[0]}",
        todo="untie them in the live state, or remove one of them from the state given to restore",
    )


def report_of(matched: Matched, loaded_bytes: int, saved_bytes: int) -> RestoreReport:
    """The report of a finished restore."""
    target, choice = matched.target, matched.choice
    placed = list(walk_tree(target.structure.tree, ()))
    paths = {node.index: path for path, node in placed if isinstance(node, ArrayLeaf)}
    found = choice.missing, choice.unexpected, choice.beside, choice.unwrapped
    missing, unexpected, beside, unwrapped = ([readable(path) for path in paths] for paths in found)
    return RestoreReport(
        matched.saved.attempt.step,
        leaves=len(paths.keys() - target.dropped),
        values=sum(isinstance(node, ValueLeaf) for _, node in placed),
        loaded_bytes=loaded_bytes,
        saved_bytes=saved_bytes,
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        left_out=tuple(beside),
        cast={
            readable(paths[index]): (target.types[index].dtype, target.places[index].kind.dtype)
            for index in sorted(target.places)
            if target.is_cast(index)
        },
        renamed={readable(old): readable(new) for old, new in choice.renamed},
        unwrapped=tuple(unwrapped),
    )


def wanted_pieces(wanted: Iterable[Wanted]) -> WantedPieces:
    """The pieces with these bytes."""
    needed: dict[int, set[tuple[int, int]]] = {}
    for each in wanted:
        needed.setdefault(each.source.part, set()).add((each.source.leaf, each.source.number))
    return WantedPieces(needed)
