"""The comparison of two committed checkpoints: their trees side by side, then the elements of what both have.

The two are compared as :func:`deeppart.load` would give them. So an object is what its ``state_dict()`` returned, and
neither the order of a dict's keys nor the way in which a leaf was saved (by all ranks, by each, in shards) counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deeppart.errors import StructureMismatchError, one_line
from deeppart.offline.diff.leaves import compare_arrays, compare_runs, same_small
from deeppart.offline.diff.records import Compared, Diff, Difference, DifferenceKind, Held, Items, Tolerance
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.reading import BATCH_BYTES, OpenCheckpoint
from deeppart.part import Signing
from deeppart.state.document import DICTS, RankLocalMark, SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.paths import KIND_NAMES, ExactPath, exact, id_key, readable
from deeppart.state.paths import Path as KeyPath
from deeppart.state.tensors import Array, LeafType
from deeppart.state.tree import container_items, container_kind, describe_leaf_value

Progress = Callable[[int, int], None]


def compare(
    a: Path,
    b: Path,
    *,
    steps: tuple[int | None, int | None] = (None, None),
    keys: Sequence[str] = (),
    rank: int | None = None,
    tolerance: Tolerance | None = None,
    signing: Signing | None = None,
    progress: Progress = lambda done, total: None,
) -> Diff:
    """Compare two committed checkpoints, leaf by leaf, as :func:`deeppart.load` would give them.

    All bytes of both are read and checked: chunks with equal digests too, because a digest in an index says what was
    saved, and not what is there now. At most 256 MiB of leaves, or the largest of each, are in memory at a time.
    """
    for root in (a, b):
        require_directory(root)

    def with_a(chosen_a: Chosen) -> Diff:
        def with_both(chosen_b: Chosen) -> Diff:
            with ExitStack() as files:
                comparing = _Comparing(files, (chosen_a, chosen_b), rank or 0, signing)
                comparing.compare(tuple(keys), rank, tolerance, progress)
                both = ((a, chosen_a), (b, chosen_b))
                found = comparing.result(*(Compared(root, chosen.manifest, chosen.remarks) for root, chosen in both))
                return replace(found, tolerance=tolerance, signatures_checked=signing is not None)

        return with_checkpoint(b, steps[1], with_both, signing)

    return with_checkpoint(a, steps[0], with_a, signing)


class _Comparing:
    """One comparison under way."""

    def __init__(self, files: ExitStack, chosen: tuple[Chosen, Chosen], rank: int, signing: Signing | None) -> None:
        self._both = [OpenCheckpoint(files, each.directory, each.manifest, rank, signing=signing) for each in chosen]
        self._leaves = self._nbytes = self._values = self._within = self._values_within = 0
        self._done = self._total = 0
        self._differences: list[Difference] = []
        self._problems: list[str] = []

    def compare(self, keys: Sequence[str], rank: int | None, tolerance: Tolerance | None, progress: Progress) -> None:
        """Compare all of it."""
        walk = Walk(tolerance)
        for each in self._ranks() if rank is None else [rank]:
            a, b = (Side(checkpoint, each) for checkpoint in self._both)
            trees = _trees(a, b, keys, first=each == (rank or 0))
            if trees is None:
                continue
            walk.walk(a, b, trees, each)
            self._total += sum(pair.kind.nbytes for pair in walk.pairs)
            found: dict[Pair, Difference] = {}
            for batch in _batches(a.checkpoint, b.checkpoint, walk.pairs):
                found |= self._compare_batch(a.checkpoint, b.checkpoint, batch, tolerance)
                self._done += sum(pair.kind.nbytes for pair in batch)
                progress(self._done, self._total)
            self._differences += [found[pair] for pair in walk.pairs if pair in found]
        self._differences[:0] = walk.differences
        self._values, self._values_within = walk.values, walk.within

    def _ranks(self) -> range:
        """The ranks whose own leaves are compared: one will do where no rank has any."""
        if not any(checkpoint.has_own for checkpoint in self._both):
            return range(1)
        return range(max(checkpoint.manifest.attempt.world_size for checkpoint in self._both))

    def _compare_batch(
        self, a: OpenCheckpoint, b: OpenCheckpoint, batch: list[Pair], tolerance: Tolerance | None
    ) -> dict[Pair, Difference]:
        differences: dict[Pair, Difference] = {}
        arrays: list[dict[int, Array]] = []
        errors = []
        for checkpoint, leaves in ((a, {pair.a for pair in batch}), (b, {pair.b for pair in batch})):
            refused = {leaf: error for leaf in leaves if (error := checkpoint.repeats(leaf)) is not None}
            read, damaged = checkpoint.read_sound(leaves - refused.keys())
            arrays.append(read)
            errors.append(refused | damaged)
        for pair in batch:
            name = pair.path if pair.rank is None else f"{pair.path} (rank {pair.rank})"
            problems = [
                f"{side}: {name} cannot be read: {one_line(error)}"
                for side, error in (("A", errors[0].get(pair.a)), ("B", errors[1].get(pair.b)))
                if error is not None
            ]
            self._problems += problems
            if problems:
                continue
            self._leaves += 1
            self._nbytes += pair.kind.nbytes
            found = compare_arrays(arrays[0][pair.a], arrays[1][pair.b], pair.kind, tolerance)
            if found is not None and found.differing:
                kind = str(pair.kind)
                differences[pair] = Difference(pair.path, pair.rank, "elements", kind, kind, found)
            self._within += found is not None and not found.differing
        return differences

    def result(self, a: Compared, b: Compared) -> Diff:
        """All that was found."""
        counts = (self._leaves, self._values, self._nbytes, self._within, self._values_within)
        return Diff(a, b, *counts, tuple(self._differences), tuple(self._problems))


def _trees(a: Side, b: Side, keys: Sequence[str], *, first: bool) -> tuple[SavedNode, SavedNode] | None:
    """The parts of both trees that the globs cover; None if they cover nothing of either."""
    trees: list[SavedNode | None] = []
    refusal: StructureMismatchError | None = None
    for side in (a, b):
        try:
            trees.append(side.checkpoint.select(keys or None)[0])
        except StructureMismatchError as error:
            refusal = error
            trees.append(None)
    if first and refusal is not None and trees == [None, None]:
        raise refusal
    one, other = trees
    if one is None or other is None:
        whole = one or other
        return None if whole is None else (one or _emptied(whole), other or _emptied(whole))
    return one, other


def _emptied(tree: SavedNode) -> SavedNode:
    """A container like another one, with nothing in it: what is in the other one only is told item by item."""
    if not isinstance(tree, SavedBranch):
        return RankLocalMark()
    return _emptied(tree.children[0]) if tree.kind == "object" else tree.with_items([])


def _batches(a: OpenCheckpoint, b: OpenCheckpoint, pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Pairs to be read together: at most :data:`BATCH_BYTES` of both, or one pair."""
    batch: list[Pair] = []
    owners: set[tuple[int, int]] = set()
    room = BATCH_BYTES
    for pair in sorted(pairs, key=lambda pair: (a.owner_of(pair.a), pair.a)):
        needed = {(0, a.owner_of(pair.a)), (1, b.owner_of(pair.b))} - owners
        nbytes = sum((a, b)[side].target.types[owner].nbytes for side, owner in needed)
        if batch and room < nbytes:
            yield batch
            batch, owners, room = [], set(), BATCH_BYTES
            needed = {(0, a.owner_of(pair.a)), (1, b.owner_of(pair.b))}
            nbytes = sum((a, b)[side].target.types[owner].nbytes for side, owner in needed)
        batch.append(pair)
        owners |= needed
        room -= nbytes
    if batch:
        yield batch


#: Kinds of containers whose items are compared all the same if one is of one kind and one of another.
_ALIKE = (DICTS, frozenset({"list", "tuple"}))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor or array in one of the trees.

    Attributes:
        leaf: its number.
        kind: its type.
        own: true if a rank has saved it for itself.
    """

    leaf: int
    kind: LeafType
    own: bool


@dataclass(frozen=True, slots=True)
class Small:
    """A small value, or a value container of them, in one of the trees; ``own`` as of :class:`Tensor`."""

    value: Any
    own: bool


@dataclass(frozen=True, slots=True)
class Container:
    """A container in one of the trees.

    Attributes:
        kind, name, keys: as of :class:`deeppart.state.document.structure.SavedBranch`.
        children: what it holds, not looked at yet.
    """

    kind: str
    name: str
    keys: tuple[Any, ...]
    children: tuple[SavedNode | Small, ...]


Node = Tensor | Small | Container


@dataclass(frozen=True, slots=True)
class Pair:
    """A leaf that both have, of one type.

    Attributes:
        path: as text.
        rank: None, or whose it is, if a rank has saved it for itself in either.
        kind: its type.
        a, b: its number in each.
    """

    path: str
    rank: int | None
    kind: LeafType
    a: int
    b: int


class Side:
    """One of the two checkpoints, as one rank saved it."""

    def __init__(self, checkpoint: OpenCheckpoint, rank: int) -> None:
        self._lacks_rank = rank >= checkpoint.manifest.attempt.world_size
        self.checkpoint = checkpoint if self._lacks_rank or rank == checkpoint.rank else checkpoint.as_rank(rank)
        self._paths: list[KeyPath] | None = None

    def look(self, node: SavedNode | Small) -> Node | None:
        """What stands at a node; None if this rank has nothing there."""
        if isinstance(node, Small):
            return node
        if isinstance(node, SavedArray):
            own = self.checkpoint.is_own_leaf(node.index)
            kind = self.checkpoint.target.types[node.index]
            return None if own and self._lacks_rank else Tensor(node.index, kind, own)
        if isinstance(node, SavedValue):
            own = self.checkpoint.is_own_value(node.index)
            return None if own and self._lacks_rank else Small(self.checkpoint.target.values[node.index], own)
        if not isinstance(node, SavedBranch):  # the structure of one rank has everything in its place
            return None
        if node.kind == "object":
            return self.look(node.children[0])
        return Container(node.kind, node.name, node.keys, node.children)

    def owner(self, leaf: int) -> ExactPath | None:
        """KeyPath of the leaf whose memory a leaf shares; None if it has its own."""
        owner = self.checkpoint.owner_of(leaf)
        if owner == leaf:
            return None
        if self._paths is None:
            self._paths = self.checkpoint.structure.array_paths()
        return exact(self._paths[owner])


class Walk:
    """The walk over both trees, once for each rank whose own leaves are compared.

    Attributes:
        differences: those that need no reading.
        pairs: the leaves to be read, of the rank that was walked last.
        values: how many small values both have.
        within: how many of them differ, by no more than the tolerance.
    """

    def __init__(self, tolerance: Tolerance | None) -> None:
        self._tolerance = tolerance
        self.differences: list[Difference] = []
        self.pairs: list[Pair] = []
        self.values = self.within = 0
        self._rank = 0
        #: What no rank has for itself is compared once, and not for each rank.
        self._seen: set[ExactPath] = set()
        #: The sides and trees of the first rank; and the nodes in them that have nothing that is a rank's own, once
        #: another rank is walked. Trees of all ranks have these nodes themselves, so there is no need to go into them.
        self._first: tuple[tuple[Side, SavedNode], tuple[Side, SavedNode]] | None = None
        self._shared: tuple[set[int], set[int]] = (set(), set())

    def walk(self, a: Side, b: Side, trees: tuple[SavedNode, SavedNode], rank: int) -> None:
        """Compare two trees, and add to what was found before."""
        self.pairs, self._rank, self._a, self._b = [], rank, a, b
        if self._first is None:
            self._first = (a, trees[0]), (b, trees[1])
        elif not self._shared[0]:
            self._shared = _shared_nodes(*self._first[0]), _shared_nodes(*self._first[1])
        self._compare(a.look(trees[0]), b.look(trees[1]), ())

    def _compare(self, a: Node | None, b: Node | None, path: KeyPath) -> None:
        if a is None or b is None:
            self._add_alone(a, b, path)
            return
        if isinstance(a, Container) != isinstance(b, Container):
            a, b = _opened(a), _opened(b)
        if isinstance(a, Container) and isinstance(b, Container):
            self._compare_containers(a, b, path)
        elif isinstance(a, Tensor) and isinstance(b, Tensor) and a.kind == b.kind:
            self._compare_leaves(a, b, path)
        elif isinstance(a, Small) and isinstance(b, Small):
            self._compare_values(a, b, path)
        else:
            self._add("type", path, _text(a), _text(b), own=self._is_either_own(a, b))

    def _compare_containers(self, a: Container, b: Container, path: KeyPath) -> None:
        if (a.kind, a.name) != (b.kind, b.name):
            self._add("type", path, _text(a), _text(b), own=self._is_either_own(a, b))
            if not any(a.kind in alike and b.kind in alike for alike in _ALIKE):
                return
        ours, theirs = (
            {id_key(key): (key, child) for key, child in zip(node.keys, node.children, strict=True)} for node in (a, b)
        )
        for name, (key, child) in ours.items():
            if name in theirs and id(child) in self._shared[0] and id(theirs[name][1]) in self._shared[1]:
                continue  # compared for the first rank
            other = self._b.look(theirs[name][1]) if name in theirs else None
            self._compare(self._a.look(child), other, (*path, key))
        for name, (key, child) in theirs.items():
            if name not in ours:
                self._compare(None, self._b.look(child), (*path, key))

    def _compare_leaves(self, a: Tensor, b: Tensor, path: KeyPath) -> None:
        own = a.own or b.own
        if self._is_done(path, own):
            return
        self.pairs.append(Pair(readable(path), self._rank if own else None, a.kind, a.leaf, b.leaf))
        owners = self._a.owner(a.leaf), self._b.owner(b.leaf)
        if owners[0] != owners[1]:
            self._add("tie", path, *map(_tie_text, owners), own=own)

    def _compare_values(self, a: Small, b: Small, path: KeyPath) -> None:
        own = a.own or b.own
        if self._is_done(path, own):
            return
        self.values += 1
        differ, detail = _differ(a.value, b.value, self._tolerance)
        if not differ and self._tolerance is not None:
            self.within += _differ(a.value, b.value, None)[0]
        if differ:
            rank = self._rank if own else None
            self.differences.append(Difference(readable(path), rank, "value", a.value, b.value, detail))

    def _add_alone(self, a: Node | None, b: Node | None, path: KeyPath) -> None:
        if a is not None:
            self._add("only_a", path, _held(self._a, a), None, own=_is_own(self._a, a))
        elif b is not None:
            self._add("only_b", path, None, _held(self._b, b), own=_is_own(self._b, b))

    def _is_either_own(self, a: Node, b: Node) -> bool:
        return _is_own(self._a, a) or _is_own(self._b, b)

    def _add(self, kind: DifferenceKind, path: KeyPath, a: Any, b: Any, *, own: bool) -> None:
        if kind == "tie" or not self._is_done(path, own):
            self.differences.append(Difference(readable(path), self._rank if own else None, kind, a, b))

    def _is_done(self, path: KeyPath, own: bool) -> bool:
        """True if something at a path was compared for another rank, and is the same for this one."""
        key = exact(path)
        if own or key not in self._seen:
            if not own:
                self._seen.add(key)
            return False
        return True


def _shared_nodes(side: Side, tree: SavedNode) -> set[int]:
    """``id`` of the nodes below one in which nothing is a rank's own."""
    found: set[int] = set()

    def is_shared(node: SavedNode) -> bool:
        if isinstance(node, SavedBranch):
            inner = [is_shared(child) for child in node.children]  # all of them are looked at
            shared = all(inner)
        else:
            there = side.look(node)
            shared = there is not None and not isinstance(there, Container) and not there.own
        if shared:
            found.add(id(node))
        return shared

    is_shared(tree)
    return found


def _differ(a: Any, b: Any, tolerance: Tolerance | None) -> tuple[bool, Items | None]:
    """Whether two small values differ; and how, if they are value containers."""
    if container_kind(a) is not None and type(a) is type(b):
        detail = compare_runs(a, b, tolerance)
        return detail is not None, detail
    return not same_small(a, b, tolerance), None


def _opened(node: Node) -> Node:
    """A container of small values as the container that it is."""
    if not isinstance(node, Small) or (kind := container_kind(node.value)) is None:
        return node
    keys, items = container_items(node.value)
    return Container(kind, "", tuple(keys), tuple(Small(item, node.own) for item in items))


def _is_own(side: Side, node: Node) -> bool:
    """True if it is a rank's own: of a container, all leaves and values in it."""
    if not isinstance(node, Container):
        return node.own
    inner = [found for found in map(side.look, node.children) if found is not None]
    return bool(inner) and all(_is_own(side, found) for found in inner)


def _held(side: Side, node: Node) -> Held:
    if isinstance(node, Tensor):
        return Held(_text(node), 1, 0, node.kind.nbytes)
    if isinstance(node, Small):
        return Held(_text(node), 0, 1, 0)
    inner = [_held(side, found) for found in map(side.look, node.children) if found is not None]
    counts = (
        sum(each.leaves for each in inner),
        sum(each.values for each in inner),
        sum(each.nbytes for each in inner),
    )
    return Held(_text(node), *counts)


def _text(node: Node) -> str:
    """What stands somewhere, for people."""
    if isinstance(node, Tensor):
        return str(node.kind)
    if isinstance(node, Small):
        return f"{type(node.value).__name__} {describe_leaf_value(node.value)}"
    return f"{' '.join(filter(None, (KIND_NAMES.get(node.kind, node.kind), node.name)))} of {len(node.keys)}"


def _tie_text(owner: ExactPath | None) -> str | None:
    return None if owner is None else readable(tuple(key if isinstance(key, str) else key[1] for key in owner))
