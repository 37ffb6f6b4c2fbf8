"""The content of one checkpoint: its tree of leaves, and the parts with the bytes of each.

Paths, types and small values come from the manifest; where the bytes are comes from the parts' indexes, of which a
damaged one is noted and passed over. No chunk is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.errors import FormatError, StorageError, StructureMismatchError
from deeppart.model import Box, Manifest, SuspectLeaf
from deeppart.offline.find import find_step
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.inspect.parts import StepFiles
from deeppart.part import OWN_TABLE, Signing
from deeppart.state.document.part_document import OwnDocument, OwnTree
from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    SavedValue,
    Structure,
)
from deeppart.state.document.whole import Wholes, gather_wholes, joined
from deeppart.state.tree.globs import covers, may_match_below
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import ROOT, ExactPath, exact, readable
from deeppart.state.tree.paths import Path as KeyPath
from deeppart.state.tree.runs import decode_leaf_value, paths_inside, run_kind
from deeppart.storage.node import one_line
from deeppart.storage.records import read_suspicions
from deeppart.storage.steps import MOST_LOOKS, step_is_retired


@dataclass(frozen=True, slots=True)
class Holding:
    """A part holds bytes ``[start, start + length)`` of a leaf."""

    rank: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or array.

    Attributes:
        path: components joined by ``/``.
        type: dtype and shape; of rank 0 where every rank has its own.
        per_rank: None if replicated, otherwise rank -> type, for the ranks whose parts could be read.
        alias_of: path of the leaf whose bytes it shares, or None.
        holdings: which parts hold it, by rank; for a leaf per rank, each rank's whole copy.
        compared: the step at which all of it was last compared between the ranks; None if never, if that is not known,
            or for a leaf per rank or a sharded one.
        shards: None if it is not sharded, otherwise the boxes that ranks had of it; ``holdings`` count the bytes of
            each.
        differing: the boxes of which ranks did not have the same bytes, and which rank's are saved.
        key: the path with the type of each key, which no two leaves of one rank have in common.
    """

    path: str
    type: LeafType
    per_rank: dict[int, LeafType] | None
    alias_of: str | None
    holdings: tuple[Holding, ...]
    compared: int | None = None
    shards: tuple[Box, ...] | None = None
    differing: tuple[tuple[int, Box], ...] = ()
    key: ExactPath = ()

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
    """A small value.

    Attributes:
        path: components joined by ``/``.
        value: the value; None where every rank has its own.
        per_rank: None if replicated, otherwise rank -> value, for the ranks whose parts could be read.
    """

    path: str
    value: Any
    per_rank: dict[int, Any] | None


@dataclass(frozen=True, slots=True)
class Container:
    """A dict, list, tuple, namedtuple or object.

    Attributes:
        kind: as :class:`deeppart.state.document.structure.SavedBranch`.
        name: type name of a namedtuple or object.
        children: (key as text, what is there), in the order saved.
    """

    kind: str
    name: str
    children: tuple[tuple[str, Node], ...]


Node = Container | Leaf | Value


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint, or the leaves of it that were asked for.

    Attributes:
        directory: of the step.
        manifest: of the step.
        tree: the nesting, as saved.
        problems: parts whose index could not be read, one line each.
        suspect: leaves that ranks may not have held alike when it was saved.
        unreadable_suspect_records: lines about records that may name more of them.
        passed_over: lines about newer steps that cannot be used.
    """

    directory: Path
    manifest: Manifest
    tree: Node
    problems: tuple[str, ...]
    suspect: tuple[SuspectLeaf, ...] = ()
    unreadable_suspect_records: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    def leaves(self) -> Iterator[Leaf | Value]:
        """Every leaf and value, in the order of the tree."""
        yield from _walk(self.tree)


def _walk(node: Node) -> Iterator[Leaf | Value]:
    if isinstance(node, Container):
        for _, child in node.children:
            yield from _walk(child)
    else:
        yield node


def read_contents(
    root: Path, step: int | None = None, keys: Sequence[str] = (), signing: Signing | None = None
) -> Contents:
    """Describe a committed checkpoint."""
    require_directory(root)
    for _ in range(MOST_LOOKS):
        found, passed_over = find_step(root, step, signing)
        files = StepFiles(found.directory, found.manifest, signing)
        describing = _Describing(files, tuple(keys))
        if not describing.problems or not step_is_retired(found.directory):
            break
    tree = describing.node(files.structure.tree, ())
    if tree is None:
        raise _no_match(files, keys)
    suspicions = read_suspicions(root)
    suspect = suspicions.of(files.manifest.attempt)
    problems = tuple(describing.problems)
    return Contents(files.directory, files.manifest, tree, problems, suspect, suspicions.problems, passed_over)


class _Describing:
    """One description under way: first all indexes, then the tree."""

    def __init__(self, files: StepFiles, patterns: tuple[str, ...]) -> None:
        self._structure, self._patterns = files.structure, patterns
        self._where = str(files.directory)
        self._manifest = files.manifest
        self._compared = _steps_compared(files.manifest)
        self._paths = [readable(path) for path in files.structure.array_paths()]
        self.problems: list[str] = []
        self._own: dict[int, OwnDocument] = {}
        #: Whose tree is being described, where it stands apart.
        self._rank: int | None = None
        self._own_holdings: dict[tuple[int, int], list[Holding]] = {}
        tables: list[npt.NDArray[np.void]] = []
        ranks: list[npt.NDArray[np.int64]] = []
        for rank in range(files.manifest.attempt.world_size):
            try:
                with files.open(rank) as part:
                    self._own[rank] = part.own
                    tables.append(part.reader.spans)
                    ranks.append(np.full(len(part.reader.spans), rank))
            except (FormatError, StorageError) as error:
                self.problems.append(one_line(error))
        self._holdings = self._sort_holdings(tables, ranks)
        self._wholes = self._gather_wholes()

    def _gather_wholes(self) -> Wholes:
        """The sharded tensors, as far as parts could be read."""
        of_ranks = {rank: own.complete(self._structure, self._where) for rank, own in self._own.items()}
        last = max(of_ranks, default=-1)
        nothing = Structure(SavedApart(), (), np.zeros(0, dtype=np.bool_))
        own = [
            (self._own[rank].trees, self._own[rank].values) if rank in of_ranks else ((), {})
            for rank in range(last + 1)
        ]
        return gather_wholes([of_ranks.get(rank, nothing) for rank in range(last + 1)], own, self._where)

    def _sort_holdings(
        self, tables: list[npt.NDArray[np.void]], ranks: list[npt.NDArray[np.int64]]
    ) -> dict[int, list[Holding]]:
        """leaf number -> who holds it; spans of a table that the structure contradicts are left out."""
        holdings: dict[int, list[Holding]] = {}
        if not tables:
            return holdings
        per_rank = self._structure.per_rank.tolist()
        spans = np.concatenate(tables)
        columns = [spans[name].tolist() for name in ("leaf", "table", "start", "length")]
        for leaf, table, start, length, rank in zip(*columns, np.concatenate(ranks).tolist(), strict=True):
            if leaf >= len(per_rank) and table == OWN_TABLE:
                self._own_holdings.setdefault((rank, leaf), []).append(Holding(rank, start, length))
            if leaf < len(per_rank) and per_rank[leaf] == (table == OWN_TABLE):
                holdings.setdefault(leaf, []).append(Holding(rank, start, length))
        for entries in holdings.values():
            entries.sort(key=lambda entry: (entry.start, entry.rank))
        return holdings

    def node(self, saved: SavedNode, path: KeyPath, covered: bool = False) -> Node | None:
        """The saved node at a path, without what the globs leave out; None if that is all of it."""
        text, is_leaf = readable(path), isinstance(saved, (SavedArray, SavedSharded, SavedValue))
        if not covered and (is_leaf or path):
            container = not isinstance(saved, (SavedArray, SavedSharded))
            covered = covers(text, self._patterns, container=container)
        covered = covered or not self._patterns
        if isinstance(saved, SavedApart):
            trees = [(rank, tree) for rank, own in self._own.items() for tree in own.trees if tree.path == path]
            found_of = [(f"rank {rank}", self._of_rank(rank, tree, covered)) for rank, tree in trees]
            children = [(name, found) for name, found in found_of if found is not None]
            return Container("per rank", "", tuple(children)) if children or covered else None
        if not isinstance(saved, SavedBranch):
            if isinstance(saved, SavedArray):
                return self._leaf(saved, path) if covered else None
            if isinstance(saved, SavedSharded):
                return self._sharded(saved, path) if covered else None
            value = self._value(saved, path)
            return value if covered or self._covers_items(text, value) else None
        children = []
        for key, child in zip(saved.keys, saved.children, strict=True):
            found = self.node(child, path if saved.kind == "object" else (*path, key), covered)
            if found is not None:
                children.append((_name(key), found))
        for rank, tree in self._trees_below(path) if saved.kind in DICTS and self._rank is None else ():
            found = self._of_rank(rank, tree, covered)
            if found is not None:
                of_whom = "" if self._wholes.has_part(tree) else f" (rank {rank})"
                children.append((f"{_name(tree.path[-1])}{of_whom}", found))
        return Container(saved.kind, saved.name, tuple(children)) if children or covered else None

    def _trees_below(self, path: KeyPath) -> list[tuple[int, OwnTree]]:
        """The trees that ranks have under keys of a dict that the other ranks need not have."""
        found = [
            (rank, tree)
            for rank, own in self._own.items()
            for tree in own.trees
            if tree.place is not None and exact(tree.path[:-1]) == exact(path)
        ]
        kept = [(rank, tree) for rank, tree in found if not self._wholes.has_part(tree)]
        # These are of no rank alone: tensors, of which several ranks have shards, or some ranks have some, and values.
        return kept + [(0, tree) for tree in joined([tree for _, tree in found if self._wholes.has_part(tree)])]

    def _of_rank(self, rank: int, tree: OwnTree, covered: bool) -> Node | None:
        """The trees that are apart on one rank."""
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
        """True if the globs cover some items of a run, which is then shown as a whole."""
        below = [pattern for pattern in self._patterns if may_match_below(path, pattern)]
        held = [found.value] if found.per_rank is None else list(found.per_rank.values())
        inside = (each for value in held if below and run_kind(value) is not None for each in paths_inside(value))
        prefix = "" if path == ROOT else f"{path}/"
        return any(covers(prefix + readable(each), below) for each in inside)

    def _leaf(self, saved: SavedArray, path: KeyPath) -> Leaf:
        index = saved.index
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

    def _sharded(self, saved: SavedSharded, path: KeyPath) -> Leaf:
        whole = self._wholes.tensors.get(exact(path))
        if whole is None:  # no part could be read
            return Leaf(readable(path), self._structure.sharded[saved.index], None, None, (), shards=())
        owner = whole if whole.tied_to is None else self._wholes.tensors[whole.tied_to]
        sources = dict.fromkeys((source.part, source.leaf) for source in (*whole.sources, *whole.own))
        held = [each for source in sources for each in self._own_holdings.get(source, ())]
        alias = None if owner is whole else owner.name
        differing = tuple(sorted(((source.part, source.box) for source in whole.own), key=lambda each: each[::-1]))
        return Leaf(
            readable(path), whole.kind, None, alias, tuple(held), None, tuple(whole.boxes()), differing, exact(path)
        )

    def _last_compared(self, leaf: int) -> int | None:
        if self._manifest.compared is None:
            return None
        return self._compared.get(leaf, self._manifest.attempt.step)

    def _value(self, saved: SavedValue, path: KeyPath) -> Value:
        index, name = saved.index, readable(path)
        if self._rank is not None:
            in_part = self._wholes.values.get(exact(path))
            if in_part is not None:
                return (
                    Value(name, None, dict(in_part.contents)) if in_part.differs else Value(name, in_part.of(0), None)
                )
            return Value(name, None, {self._rank: self._own[self._rank].values[index]})
        if not self._structure.per_rank_values[index]:
            return Value(name, decode_leaf_value(self._structure.values[index], self._where), None)
        own = {rank: own.values[index] for rank, own in self._own.items() if index in own.values}
        return Value(name, None, own)


def _steps_compared(manifest: Manifest) -> dict[int, int | None]:
    """Leaf number -> when it was last compared in full, for those that were not at the step itself."""
    leaves = len(manifest.structure.get("leaves", ()))  # a range may reach further: it is not to cost memory
    return {
        leaf: group.step
        for group in manifest.compared or ()
        for first, count in group.ranges
        for leaf in range(first, min(first + count, leaves))
    }


def _name(key: object) -> str:
    return readable((key,)) if key != "" else "''"


def _no_match(files: StepFiles, keys: Sequence[str]) -> StructureMismatchError:
    names = [readable(path) for path, _ in files.structure.walk()]
    return StructureMismatchError(
        "no leaf of the checkpoint matches the keys asked for",
        expected=f"globs over {len(names)} paths such as {', '.join(names[:4])}",
        found=", ".join(map(repr, keys)),
        where=str(files.directory),
        todo="`deeppart show DIR` lists the paths",
    )
