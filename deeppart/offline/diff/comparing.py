"""The comparison of two committed checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from deeppart.errors import StructureMismatchError
from deeppart.offline.batches import BATCH_BYTES, owner_of, read_sound, repeats
from deeppart.offline.diff.arrays import compare_arrays
from deeppart.offline.diff.records import Compared, Diff, Difference, Tolerance
from deeppart.offline.diff.walking import Pair, Side, Walk
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.load import OpenCheckpoint
from deeppart.part import Signing
from deeppart.state.document.structure import SavedApart, SavedBranch, SavedNode
from deeppart.state.tree.leaves import Array
from deeppart.storage.node import one_line

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

    def with_a(chosen_a: Chosen) -> Diff:
        def with_both(chosen_b: Chosen) -> Diff:
            with ExitStack() as files:
                comparing = _Comparing(files, (chosen_a, chosen_b), rank or 0, signing)
                comparing.compare(tuple(keys), rank, tolerance, progress)
                both = ((a, chosen_a), (b, chosen_b))
                return comparing.result(*(Compared(root, chosen.manifest, chosen.remarks) for root, chosen in both))

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
            refused = {leaf: error for leaf in leaves if (error := repeats(checkpoint, leaf)) is not None}
            read, damaged = read_sound(checkpoint, leaves - refused.keys())
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
        return SavedApart()
    return _emptied(tree.children[0]) if tree.kind == "object" else tree.with_items([])


def _batches(a: OpenCheckpoint, b: OpenCheckpoint, pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Pairs to be read together: at most :data:`~deeppart.offline.batches.BATCH_BYTES` of both, or one pair."""
    batch: list[Pair] = []
    owners: set[tuple[int, int]] = set()
    room = BATCH_BYTES
    for pair in sorted(pairs, key=lambda pair: (owner_of(a, pair.a), pair.a)):
        needed = {(0, owner_of(a, pair.a)), (1, owner_of(b, pair.b))} - owners
        nbytes = sum((a, b)[side].target.types[owner].nbytes for side, owner in needed)
        if batch and room < nbytes:
            yield batch
            batch, owners, room = [], set(), BATCH_BYTES
            needed = {(0, owner_of(a, pair.a)), (1, owner_of(b, pair.b))}
            nbytes = sum((a, b)[side].target.types[owner].nbytes for side, owner in needed)
        batch.append(pair)
        owners |= needed
        room -= nbytes
    if batch:
        yield batch
