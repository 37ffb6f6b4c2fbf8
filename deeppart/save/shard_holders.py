"""Which ranks hold the same shards of tensors, and whether the shards of all ranks are the whole tensors.

Asked once for a structure. Each rank tells what it has of a tensor to the rank that keeps the book on it
(:mod:`deeppart.plan.shards.holders`): nobody hears of all shards of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from deeppart.comm.agreement import raise_together
from deeppart.comm.base import Comm
from deeppart.comm.exchange import exchange
from deeppart.comm.waiting import finish
from deeppart.errors import StructureMismatchError
from deeppart.model.boxes import Box
from deeppart.plan.shards import Claim, Verdict, judge
from deeppart.state.compare.state_layout import StateLayout
from deeppart.state.document.structure_json import encode_path
from deeppart.state.document.ties import overlapping
from deeppart.state.tree.fingerprint import hash63
from deeppart.state.tree.flat import FlatState, ShardedLeaf
from deeppart.state.tree.paths import readable, some_names

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Holders:
    """The ranks that hold the same shards as this one.

    Attributes:
        ranks: leaf number of a shard -> all ranks that hold the same one, ascending.
        untied: shards that share memory with another here, but not in the same way on all of these ranks.
    """

    ranks: dict[int, tuple[int, ...]]
    untied: tuple[int, ...]

    def sets(self, flat: FlatState, layout: StateLayout) -> dict[tuple[int, ...], list[int]]:
        """The ranks that hold shards alike, two at least -> this rank's leaves with bytes, in one order on all."""
        found: dict[tuple[int, ...], list[int]] = {}
        for leaf in flat.sharded:
            for number in leaf.numbers:
                if len(self.ranks[number]) > 1 and layout.types[number].nbytes and number not in layout.aliases:
                    found.setdefault(self.ranks[number], []).append(number)
        order = {n: (_key(leaf), box) for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
        return {ranks: sorted(numbers, key=order.__getitem__) for ranks, numbers in found.items()}

    def alone(self, leaves: Collection[int], rank: int) -> Holders:
        """The same, if some shards of this rank are nobody else's."""
        return Holders({**self.ranks, **dict.fromkeys(leaves, (rank,))}, self.untied)


def find_holders(comm: Comm, flat: FlatState, layout: StateLayout, within: tuple[str, float]) -> Holders:
    """Find out who else holds this rank's shards (collective)."""
    what, timeout = within
    keepers = [hash63(_key(leaf).encode()) % comm.size for leaf in flat.sharded]
    ties = _ties(flat, layout)
    claims: list[list[Any]] = [[] for _ in range(comm.size)]
    for leaf, keeper in zip(flat.sharded, keepers, strict=True):
        boxes = [[*box, ties.get(number, "")] for number, box in zip(leaf.numbers, leaf.boxes, strict=True)]
        claims[keeper].append([_key(leaf), readable(leaf.path), str(leaf.kind), leaf.kind.shape, boxes])
    told = finish(comm, exchange(comm, [json.dumps(each).encode() for each in claims]), what, timeout)
    verdicts, faults = _judged([json.loads(text) for text in told])
    raise_together(comm, _fault(faults, what) or _torn_memory(flat, layout, what), what, timeout)
    answers = finish(comm, exchange(comm, [json.dumps(each).encode() for each in verdicts]), what, timeout)
    return _taken(flat, keepers, [iter(json.loads(text)) for text in answers], ties)


def _judged(told: list[list[Any]]) -> tuple[list[list[Any]], list[str]]:
    """The answer to each rank, in the order in which it has asked; and what is wrong."""
    claims: dict[str, dict[int, Claim]] = {}
    names: dict[str, str] = {}
    for rank, entries in enumerate(told):
        for key, name, kind, shape, boxes in entries:
            found = tuple(Box(tuple(offset), tuple(sizes)) for offset, sizes, _ in boxes)
            claim = Claim(kind, tuple(shape), found, tuple(tie for _, _, tie in boxes))
            claims.setdefault(key, {})[rank] = claim
            names[key] = name
    faults: list[str] = []
    verdicts: dict[str, dict[int, Verdict]] = {}
    for key, of_ranks in claims.items():
        judged = judge(names[key], of_ranks)
        if isinstance(judged, str):
            faults.append(judged)
        else:
            verdicts[key] = judged
    if faults:
        return [[] for _ in told], faults
    answers = [[_answer(verdicts[entry[0]][rank]) for entry in entries] for rank, entries in enumerate(told)]
    return answers, faults


def _answer(verdict: Verdict) -> list[Any]:
    return [verdict.holders, verdict.tied]


def _taken(flat: FlatState, keepers: list[int], answers: list[Iterator[Any]], ties: dict[int, str]) -> Holders:
    ranks: dict[int, tuple[int, ...]] = {}
    untied: list[int] = []
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # thousands of shards have a handful of sets
    for leaf, keeper in zip(flat.sharded, keepers, strict=True):
        holders, tied = next(answers[keeper])
        for number, found, is_tied in zip(leaf.numbers, map(tuple, holders), tied, strict=True):
            ranks[number] = known.setdefault(found, found)
            if number in ties and not is_tied:
                untied.append(number)
    return Holders(ranks, tuple(untied))


def _torn_memory(flat: FlatState, layout: StateLayout, what: str) -> StructureMismatchError | None:
    """A tensor that only some ranks have is saved for itself: of memory that it shares, a restore would not know."""
    if not any(each.part for each in flat.apart):
        return None
    arrays = {index: data for index, data in enumerate(flat.data) if index not in layout.own_aliases}
    paths = {number: leaf.path for leaf in flat.sharded for number in leaf.numbers}
    found = overlapping(arrays)
    if paths.keys().isdisjoint(found):
        return None
    names = [readable(paths[index] if index in paths else flat.arrays[index].path) for index in found]
    return StructureMismatchError(
        f"{what}: a tensor that only some ranks have, or have shards of, shares memory with another leaf",
        expected="memory of its own, or the whole memory of another such tensor",
        found=some_names(names, most=_SHOWN),
        todo="leave one of them out, which the other one brings back; or give all ranks both; nothing was saved",
    )


def _ties(flat: FlatState, layout: StateLayout) -> dict[int, str]:
    """What names the shard whose memory each tied shard shares."""
    names = {number: (leaf, box) for leaf in flat.sharded for number, box in zip(leaf.numbers, leaf.boxes, strict=True)}
    found = {}
    for index, alias in layout.own_aliases.items():
        if index in names:
            leaf, box = names[alias.owner]
            found[index] = f"{_key(leaf)} {box}"
    return found


def _key(leaf: ShardedLeaf) -> str:
    return json.dumps(encode_path(leaf.path))


def _fault(faults: list[str], what: str) -> StructureMismatchError | None:
    if not faults:
        return None
    return StructureMismatchError(
        f"{what}: the ranks' shards of a tensor are not that tensor",
        expected="each element in one shard, or in equal ones of several ranks; one dtype and whole shape on all ranks",
        found=some_names(faults, "; ", _SHOWN),
        todo="give every rank that has a part of the tensor to checkpoint(), from meshes that hold all of it; "
        "nothing was saved",
    )
