"""The content of one checkpoint: its tree of leaves, and the parts with the bytes of each.

Paths, types and small values come from the manifest; where the bytes are comes from the parts' indexes, of which a
damaged one is noted and passed over. No chunk is read, unless statistics of the elements are asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from deeppart.errors import StorageError, one_line
from deeppart.model import Box, Manifest, SuspectLeaf
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.reading import OpenCheckpoint, no_match
from deeppart.offline.statistics import Stats, statistics
from deeppart.part import RANK_TABLE, Signing
from deeppart.state.document import RankLocalTree, joined
from deeppart.state.paths import ROOT, ExactPath, covers, exact, may_match_below, readable
from deeppart.state.paths import Path as KeyPath
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, Node, RankLocal, ValueLeaf, container_kind, paths_inside
from deeppart.state.values import decode_value
from deeppart.storage import PosixStore, Suspicions

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Holding:
    """A part holds bytes ``[start, start + length)`` of a leaf."""

    rank: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or array. Fields: docs/commands.md, show."""

    json_also: ClassVar = ("kind", "nbytes", "stored_bytes")
    kind: ClassVar = "leaf"

    path: str
    type: LeafType
    per_rank: dict[int, LeafType] | None
    alias_of: str | None
    holdings: tuple[Holding, ...]
    compared: int | None = None
    shards: tuple[Box, ...] | None = None
    differing: tuple[tuple[int, Box], ...] = ()
    #: The path with the type of each key, which no two leaves of one rank have in common.
    key: ExactPath = field(default=(), metadata={"json": False})
    stats: Stats | None = None
    stats_per_rank: dict[int, Stats | None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return self.type.nbytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of all copies in the checkpoint, before encoding; 0 for an alias."""
        if self.alias_of is not None:
            return 0
        if self.shards is not None:
            again = sum(box.elements for _, box in self.differing) - sum(box.elements for box in self.boxes_that_differ)
            return self.nbytes + again * self.type.itemsize
        return self.nbytes if self.per_rank is None else sum(kind.nbytes for kind in self.per_rank.values())

    @property
    def boxes_that_differ(self) -> set[Box]:
        """The boxes of ``differing``, each once."""
        return {box for _, box in self.differing}


@dataclass(frozen=True, slots=True)
class Value:
    """A small value. Fields: docs/commands.md, show."""

    json_also: ClassVar = ("kind", "type")
    kind: ClassVar = "value"

    path: str
    value: Any = field(metadata={"json": "value"})
    per_rank: dict[int, Any] | None = field(metadata={"json": "values"})

    @property
    def type(self) -> str:
        """Of the value; where every rank has its own, of the first."""
        return type(self.value if self.per_rank is None else next(iter(self.per_rank.values()), None)).__name__


@dataclass(frozen=True, slots=True)
class Container:
    """A dict, list, tuple, namedtuple or object.

    Attributes:
        kind: as :class:`deeppart.state.document.structure.Branch`.
        name: type name of a namedtuple or object.
        children: (key as text, what is there), in the order saved.
    """

    kind: str
    name: str
    children: tuple[tuple[str, Shown], ...]


Shown = Container | Leaf | Value


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint, or the leaves of it that were asked for. Fields: docs/commands.md, show."""

    json_also: ClassVar = ("totals", "leaves")

    directory: Path
    manifest: Manifest
    signature_checked: bool
    tree: Shown = field(metadata={"json": False})
    problems: tuple[str, ...]
    suspect: tuple[SuspectLeaf, ...] = ()
    unreadable_suspect_records: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """True if everything could be read."""
        return not self.problems

    @property
    def leaves(self) -> list[Leaf | Value]:
        """Every leaf and value, in the order of the tree."""
        return list(_walk(self.tree))

    @property
    def totals(self) -> Totals:
        """Counts and bytes of what is shown."""
        leaves = [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]
        return Totals(
            leaves=len(leaves),
            values=len(self.leaves) - len(leaves),
            replicated_bytes=sum(each.stored_bytes for each in leaves if each.per_rank is None and each.shards is None),
            sharded_bytes=sum(each.stored_bytes for each in leaves if each.shards is not None),
            per_rank_bytes=sum(each.stored_bytes for each in leaves if each.per_rank is not None),
            file_bytes=self.manifest.nbytes,
            referenced_bytes=self.manifest.referenced_bytes,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and bytes of what is shown; the files' bytes are those of the whole checkpoint."""

    leaves: int
    values: int
    replicated_bytes: int
    sharded_bytes: int
    per_rank_bytes: int
    file_bytes: int
    referenced_bytes: int


def _walk(node: Shown) -> Iterator[Leaf | Value]:
    if isinstance(node, Container):
        for _, child in node.children:
            yield from _walk(child)
    else:
        yield node


def read_contents(
    root: Path,
    step: int | None = None,
    keys: Sequence[str] = (),
    signing: Signing | None = None,
    progress: Progress | None = None,
) -> Contents:
    """Describe a committed checkpoint; with ``progress``, read its leaves, too, for statistics of their elements."""

    def use(chosen: Chosen) -> Contents:
        problems: list[str] = []
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files if progress is not None else None, chosen.step, problems=problems)
            if problems and chosen.step.is_retired():
                raise StorageError("the step is gone", errno=errno.ENOENT, where=chosen.step.where)
            tree = _Describing(checkpoint, tuple(keys)).tree()
            if progress is not None:
                tree, more = with_statistics(tree, checkpoint, progress)
                problems += more
        suspicions = Suspicions.read(PosixStore(root))
        return Contents(
            directory=root,
            manifest=chosen.manifest,
            signature_checked=signing is not None,
            tree=tree,
            problems=tuple(problems),
            suspect=suspicions.of(chosen.manifest.attempt),
            unreadable_suspect_records=suspicions.problems,
            passed_over=chosen.passed_over,
        )

    return with_checkpoint(root, step, use, signing)


class _Describing:
    """The description of a checkpoint, as far as its parts can be used."""

    def __init__(self, checkpoint: OpenCheckpoint, patterns: tuple[str, ...]) -> None:
        self._structure, self._patterns = checkpoint.shared, patterns
        self._where, self._manifest = checkpoint.step.where, checkpoint.step.manifest
        self._held, self._global_state = checkpoint.held, checkpoint.global_state
        self._own = {rank: part.own for rank, part in checkpoint.parts.items()}
        self._compared = _steps_compared(self._manifest)
        self._paths = [readable(path) for path in self._structure.array_paths()]
        #: Whose tree is being described, where it is rank-local.
        self._rank: int | None = None
        self._own_holdings: dict[tuple[int, int], list[Holding]] = {}
        self._holdings = self._sort_holdings({rank: part.reader.spans for rank, part in checkpoint.parts.items()})

    def tree(self) -> Shown:
        """All of it that the globs cover; StructureMismatchError if that is nothing."""
        found = self.node(self._structure.tree, ())
        if found is None:
            raise no_match(self._structure, self._patterns, self._where)
        return found

    def _sort_holdings(self, tables: dict[int, npt.NDArray[np.void]]) -> dict[int, list[Holding]]:
        """leaf number -> who holds it; spans of a table that the structure contradicts are left out."""
        holdings: dict[int, list[Holding]] = {}
        if not tables:
            return holdings
        per_rank, divisions = self._structure.per_rank.tolist(), self._structure.divisions
        spans = np.concatenate(list(tables.values()))
        ranks_of = np.repeat(list(tables), [len(table) for table in tables.values()])
        order = np.lexsort((ranks_of, spans["start"], spans["box"]))
        columns = [spans[name][order].tolist() for name in ("leaf", "table", "start", "length")]
        for leaf, table, start, length, rank in zip(*columns, ranks_of[order].tolist(), strict=True):
            if leaf >= len(per_rank) and table == RANK_TABLE:
                self._own_holdings.setdefault((rank, leaf), []).append(Holding(rank, start, length))
            if leaf < len(per_rank) and (leaf in divisions or per_rank[leaf] == (table == RANK_TABLE)):
                holdings.setdefault(leaf, []).append(Holding(rank, start, length))
        return holdings

    def node(self, saved: Node, path: KeyPath, covered: bool = False) -> Shown | None:
        """The saved node at a path, without what the globs leave out; None if that is all of it."""
        text, is_leaf = readable(path), isinstance(saved, (ArrayLeaf, ValueLeaf))
        if not covered and (is_leaf or path):
            container = not isinstance(saved, ArrayLeaf)
            covered = covers(text, self._patterns, container=container)
        covered = covered or not self._patterns
        if isinstance(saved, RankLocal):
            trees = [(rank, tree) for rank, own in self._own.items() for tree in own.trees if tree.path == path]
            found_of = [(f"rank {rank}", self._of_rank(rank, tree, covered)) for rank, tree in trees]
            children = [(name, found) for name, found in found_of if found is not None]
            return Container("per rank", "", tuple(children)) if children or covered else None
        if isinstance(saved, ArrayLeaf):
            return self._leaf(saved, path) if covered else None
        if isinstance(saved, ValueLeaf):
            value = self._value(saved, path)
            return value if covered or self._covers_items(text, value) else None
        assert isinstance(saved, Branch)
        children = []
        for key, (inner, child) in zip(saved.keys, saved.items(path), strict=True):
            found = self.node(child, inner, covered)
            if found is not None:
                children.append((_name(key), found))
        for rank, tree in self._trees_below(path) if saved.kind in DICTS and self._rank is None else ():
            found = self._of_rank(rank, tree, covered)
            if found is not None:
                of_whom = "" if self._global_state.has_part(tree) else f" (rank {rank})"
                children.append((f"{_name(tree.path[-1])}{of_whom}", found))
        return Container(saved.kind, saved.name, tuple(children)) if children or covered else None

    def _trees_below(self, path: KeyPath) -> list[tuple[int, RankLocalTree]]:
        """The trees that ranks have under keys of a dict that the other ranks need not have."""
        found = [
            (rank, tree)
            for rank, own in self._own.items()
            for tree in own.trees
            if tree.position is not None and exact(tree.path[:-1]) == exact(path)
        ]
        kept = [(rank, tree) for rank, tree in found if not self._global_state.has_part(tree)]
        # These are of no rank alone: tensors, of which several ranks have shards, or some ranks have some, and values.
        return kept + [(0, tree) for tree in joined([tree for _, tree in found if self._global_state.has_part(tree)])]

    def _of_rank(self, rank: int, tree: RankLocalTree, covered: bool) -> Shown | None:
        """The trees that are rank-local on one rank."""
        self._rank = rank
        try:
            return self.node(tree.node, tree.path, covered)
        finally:
            self._rank = None

    def _own_leaf(self, rank: int, index: int, path: KeyPath) -> Leaf:
        own = self._own[rank]
        alias = own.aliases.get(index)
        holdings = self._own_holdings.get((rank, index if alias is None else alias.owner), ())
        kind = own.types[index]
        tied = None if alias is None else f"leaf {alias.owner} of rank {rank}"
        return Leaf(readable(path), kind, {rank: kind}, tied, tuple(holdings), key=exact(path))

    def _covers_items(self, path: str, found: Value) -> bool:
        """True if the globs cover some items of a value container, which is then shown as a whole."""
        below = [pattern for pattern in self._patterns if may_match_below(path, pattern)]
        held = [found.value] if found.per_rank is None else list(found.per_rank.values())
        inside = (each for value in held if below and container_kind(value) is not None for each in paths_inside(value))
        prefix = "" if path == ROOT else f"{path}/"
        return any(covers(prefix + readable(each), below) for each in inside)

    def _leaf(self, saved: ArrayLeaf, path: KeyPath) -> Leaf:
        index = saved.index
        if index in self._structure.divisions:
            return self._sharded(index, path)
        if self._rank is not None:
            return self._own_leaf(self._rank, index, path)
        alias = self._structure.aliases.get(index)
        kinds = None
        if self._structure.per_rank[index]:
            kinds = {rank: own.types[index] for rank, own in self._own.items() if index in own.types}
        source = index if alias is None else alias.owner
        return Leaf(
            readable(path),
            self._structure.types[index],
            kinds,
            None if alias is None else self._paths[alias.owner],
            tuple(self._holdings.get(source, ())),
            self._last_compared(index) if kinds is None else None,
            key=exact(path),
        )

    def _sharded(self, leaf: int, path: KeyPath) -> Leaf:
        division, alias = self._structure.divisions[leaf], self._structure.aliases.get(leaf)
        differing = sorted(
            ((rank, division.box(number)) for number, ranks in self._held.own_of(leaf).items() for rank in ranks),
            key=lambda each: each[::-1],
        )
        return Leaf(
            readable(path),
            self._structure.types[leaf],
            None,
            None if alias is None else self._global_state.tensors[alias.owner].name,
            tuple(self._holdings.get(leaf if alias is None else alias.owner, ())),
            None,
            tuple(division.box(number) for number in range(len(division))),
            tuple(differing),
            exact(path),
        )

    def _last_compared(self, leaf: int) -> int | None:
        return self._compared.get(leaf, self._manifest.attempt.step)

    def _value(self, saved: ValueLeaf, path: KeyPath) -> Value:
        index, name = saved.index, readable(path)
        if self._rank is not None:
            in_part = self._global_state.values.get(exact(path))
            if in_part is not None:
                return (
                    Value(name, None, dict(in_part.contents)) if in_part.differs else Value(name, in_part.of(0), None)
                )
            return Value(name, None, {self._rank: self._own[self._rank].values[index]})
        if not self._structure.per_rank_values[index]:
            return Value(name, decode_value(self._structure.values[index], self._where), None)
        own = {rank: own.values[index] for rank, own in self._own.items() if index in own.values}
        return Value(name, None, own)


def _steps_compared(manifest: Manifest) -> dict[int, int | None]:
    """Leaf number -> when it was last compared in full, for those that were not at the step itself."""
    leaves = len(manifest.structure.get("leaves", ()))  # a range may reach further: it is not to cost memory
    return {
        leaf: group.step
        for group in manifest.compared
        for first, count in group.ranges
        for leaf in range(first, min(first + count, leaves))
    }


def _name(key: object) -> str:
    return readable((key,)) if key != "" else "''"


# --- statistics ---

#: A leaf, and the rank that has saved it for itself; None if it is no rank's own.
_Owner = tuple[ExactPath, int | None]


def with_statistics(tree: Shown, checkpoint: OpenCheckpoint, progress: Progress) -> tuple[Shown, list[str]]:
    """A tree with statistics of its leaves, and lines about those that cannot be read.

    Every chunk of them is read, and its digest checked; at most 256 MiB of leaves, or one leaf, are in memory.
    """
    leaves = [leaf for leaf in _walk(tree) if isinstance(leaf, Leaf)]
    wanted: dict[int | None, set[ExactPath]] = {}
    for leaf in leaves:
        for rank in [None] if leaf.per_rank is None else leaf.per_rank:
            wanted.setdefault(rank, set()).add(leaf.key)
    reading = _Reading(sum(leaf.nbytes if leaf.per_rank is None else leaf.stored_bytes for leaf in leaves), progress)
    anyone = next(iter(checkpoint.parts), 0)
    for rank in sorted(wanted, key=lambda rank: -1 if rank is None else rank) if checkpoint.parts else ():
        reading.read(checkpoint.as_rank(anyone if rank is None else rank), rank, wanted[rank])
    return _with_statistics(tree, reading.found), reading.problems


def _with_statistics(node: Shown, found: dict[_Owner, Stats]) -> Shown:
    if isinstance(node, Container):
        return replace(node, children=tuple((key, _with_statistics(child, found)) for key, child in node.children))
    if not isinstance(node, Leaf):
        return node
    if node.per_rank is None:
        return replace(node, stats=found.get((node.key, None)))
    return replace(node, stats_per_rank={rank: found.get((node.key, rank)) for rank in node.per_rank})


class _Reading:
    """The reading of leaves under way."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self.found: dict[_Owner, Stats] = {}
        self.problems: list[str] = []

    def read(self, checkpoint: OpenCheckpoint, rank: int | None, wanted: set[ExactPath]) -> None:
        """Read leaves as one rank has saved them."""
        types = checkpoint.target.types
        places = {
            node.index: key
            for path, node in checkpoint.structure.walk()
            if isinstance(node, ArrayLeaf) and (key := exact(path)) in wanted
        }
        for batch in checkpoint.batches(places):
            arrays, damaged = checkpoint.read_sound(batch)
            self.problems += dict.fromkeys(map(one_line, damaged.values()))
            for leaf, array in arrays.items():
                if (found := statistics(array, types[leaf])) is not None:
                    self.found[places[leaf], rank] = found
            del arrays  # before the next ones are read
            self._done += sum(types[leaf].nbytes for leaf in batch)
            self._progress(self._done, self._total)
