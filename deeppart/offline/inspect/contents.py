"""The content of a checkpoint: a row for each container, leaf and small value, and the parts with the bytes of each.

Paths, types and small values are from the manifest, the locations of bytes from the indexes of parts; a damaged index
is reported and skipped. Chunks are only read for statistics.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from deeppart.errors import StorageError, StructureMismatchError, one_line
from deeppart.model import Box, Manifest, SuspectLeaf
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.reading import OpenCheckpoint, Row
from deeppart.offline.statistics import Stats, statistics
from deeppart.part import RANK_TABLE, Signing
from deeppart.state.paths import ExactPath, exact
from deeppart.state.paths import Path as KeyPath
from deeppart.state.tensors import LeafType
from deeppart.state.tree import ArrayLeaf, Branch, ValueLeaf
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
    keys: KeyPath = field(default=(), metadata={"json": False})
    #: Rank -> number of a per-rank leaf; None -> number of a leaf of all ranks.
    numbers: Mapping[int | None, int] = field(default_factory=dict, metadata={"json": False})
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
        """The distinct boxes of ``differing``."""
        return {box for _, box in self.differing}


@dataclass(frozen=True, slots=True)
class Value:
    """A small value. Fields: docs/commands.md, show."""

    json_also: ClassVar = ("kind", "type")
    kind: ClassVar = "value"

    path: str
    value: Any = field(metadata={"json": "value"})
    per_rank: dict[int, Any] | None = field(metadata={"json": "values"})
    keys: KeyPath = field(default=(), metadata={"json": False})
    #: The object of which it is the whole data, as text.
    form: str = field(default="", metadata={"json": False})

    @property
    def type(self) -> str:
        """Type of the value; for per-rank values, of the first."""
        return type(self.value if self.per_rank is None else next(iter(self.per_rank.values()), None)).__name__


@dataclass(frozen=True, slots=True)
class Container:
    """A dict, list, tuple, namedtuple, object, or tensor of components.

    Attributes:
        keys: its path.
        text: its kind, as text.
        size: number of its items that are shown.
    """

    keys: KeyPath
    text: str
    size: int = 0


Shown = Container | Leaf | Value


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint, or selected leaves of it. Fields: docs/commands.md, show.

    Attributes:
        rows: in the saved order, containers before their items.
    """

    json_also: ClassVar = ("totals", "leaves")

    directory: Path
    manifest: Manifest
    signature_checked: bool
    rows: tuple[Shown, ...] = field(metadata={"json": False})
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
        """Every leaf and value, in the order of the state."""
        return [row for row in self.rows if not isinstance(row, Container)]

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


def read_contents(
    root: Path,
    step: int | None = None,
    keys: Sequence[str] = (),
    signing: Signing | None = None,
    progress: Progress | None = None,
) -> Contents:
    """Describe a committed checkpoint; with ``progress``, also read its leaves for statistics."""

    def use(chosen: Chosen) -> Contents:
        problems: list[str] = []
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files if progress is not None else None, chosen.step, problems=problems)
            if problems and chosen.step.is_retired():
                raise StorageError("the step is gone", errno=errno.ENOENT, where=chosen.step.where)
            rows = _Table(checkpoint).rows(keys)
            if progress is not None:
                rows, more = _with_statistics(rows, checkpoint, progress)
                problems += more
        suspicions = Suspicions.read(PosixStore(root))
        return Contents(
            directory=root,
            manifest=chosen.manifest,
            signature_checked=signing is not None,
            rows=tuple(rows),
            problems=tuple(problems),
            suspect=suspicions.of(chosen.manifest.attempt),
            unreadable_suspect_records=suspicions.problems,
            passed_over=chosen.passed_over,
        )

    return with_checkpoint(root, step, use, signing)


class _Table:
    """The content of all ranks, each path once, as far as parts can be used."""

    def __init__(self, checkpoint: OpenCheckpoint) -> None:
        self._checkpoint, self._manifest = checkpoint, checkpoint.step.manifest
        self._compared = _steps_compared(self._manifest)
        self._holdings = self._sort_holdings()
        #: By path and kind of row, since ranks may have different kinds at a path.
        self._found: dict[tuple[ExactPath, str], Shown] = {}
        self._inside: dict[ExactPath | None, list[tuple[ExactPath, str]]] = {}

    def rows(self, patterns: Sequence[str]) -> list[Shown]:
        """The rows that the globs match; StructureMismatchError if there are none."""
        ranks = self._checkpoint.parts if self._checkpoint.shared.has_rank_local else ()
        refusal: StructureMismatchError | None = None
        for rank in ranks or (None,):  # without rank-local items, the shared structure has everything
            view = self._checkpoint.as_rank(rank)
            try:
                tree, _ = view.select(patterns or None)
            except StructureMismatchError as error:
                refusal = refusal or error
                continue
            for row in view.rows(tree):
                self._add(row, view)
        if refusal is not None and not self._found:
            raise refusal
        return list(self._walk(None))

    def _walk(self, around: ExactPath | None) -> Iterator[Shown]:
        for key in self._inside.get(around, ()):
            found = self._found[key]
            if isinstance(found, Container):
                yield replace(found, size=len(self._inside.get(key[0], ())))
                yield from self._walk(key[0])
            else:
                yield found

    def _add(self, row: Row, view: OpenCheckpoint) -> None:
        made: Shown
        if isinstance(row.node, Branch):
            made, sort = Container(row.path, row.object or row.container[0]), "container"
        elif isinstance(row.node, ArrayLeaf):
            made, sort = self._leaf(row, row.node.index, view), Leaf.kind
        else:
            assert isinstance(row.node, ValueLeaf)
            per_rank = view.values_of_ranks(row.node.index) if row.own else None
            value = row.value if per_rank is None else None
            made, sort = Value(row.name, value, per_rank, row.path, row.form or row.object), Value.kind
        key = exact(row.path), sort
        known = self._found.get(key)
        if known is None:
            self._inside.setdefault(key[0][:-1] if row.path else None, []).append(key)
            self._found[key] = made
        elif isinstance(known, Container) and isinstance(made, Container) and made.text not in known.text:
            self._found[key] = replace(known, text=f"{known.text} or {made.text}")
        elif isinstance(known, Leaf) and isinstance(made, Leaf) and known.per_rank and made.per_rank:
            holdings = dict.fromkeys((*known.holdings, *made.holdings))
            numbers, per_rank = {**known.numbers, **made.numbers}, {**known.per_rank, **made.per_rank}
            self._found[key] = replace(known, per_rank=per_rank, holdings=tuple(holdings), numbers=numbers)
        elif isinstance(known, Value) and isinstance(made, Value) and made.per_rank:
            self._found[key] = replace(known, value=None, per_rank={**(known.per_rank or {}), **made.per_rank})

    def _leaf(self, row: Row, index: int, view: OpenCheckpoint) -> Leaf:
        kind, division = view.target.types[index], view.structure.divisions.get(index)
        owner, is_rank_local = view.owner_of(index), index >= len(view.shared)
        holdings = tuple(self._holdings.get((owner, view.rank if is_rank_local else None), ()))
        leaf = Leaf(row.name, kind, None, view.tied_to(index), holdings, keys=row.path, numbers={None: index})
        if division is not None:
            own = view.held.own_of(index).items()
            differing = sorted((division.box(number), rank) for number, ranks in own for rank in ranks)
            shards = tuple(division.box(number) for number in range(len(division)))
            return replace(leaf, shards=shards, differing=tuple((rank, box) for box, rank in differing))
        if row.own:
            per_rank = view.types_of_ranks(index)
            return replace(leaf, per_rank=per_rank, numbers=dict.fromkeys(per_rank, index))
        return replace(leaf, compared=self._compared.get(index, self._manifest.attempt.step))

    def _sort_holdings(self) -> dict[tuple[int, int | None], list[Holding]]:
        """(leaf number, rank of a rank-local leaf or None) -> its holdings, without spans that contradict the
        structure.
        """
        per_rank, divisions = self._checkpoint.shared.per_rank.tolist(), self._checkpoint.shared.divisions
        found: dict[tuple[int, int | None], list[tuple[int, int, int, int]]] = {}
        for rank, part in self._checkpoint.parts.items():
            columns = (part.reader.spans[name].tolist() for name in ("leaf", "table", "box", "start", "length"))
            for leaf, table, box, start, length in zip(*columns, strict=True):
                is_rank_local = leaf >= len(per_rank)
                if leaf in divisions or (is_rank_local or per_rank[leaf]) == (table == RANK_TABLE):
                    found.setdefault((leaf, rank if is_rank_local else None), []).append((box, start, rank, length))
        return {
            key: [Holding(rank, start, length) for _, start, rank, length in sorted(held)]
            for key, held in found.items()
        }


def _steps_compared(manifest: Manifest) -> dict[int, int | None]:
    """Leaf number -> step at which it was last compared in full, for leaves that were not at this step."""
    leaves = len(manifest.structure.get("leaves", ()))  # a forged range may reach further, and must not cost memory
    return {
        leaf: group.step
        for group in manifest.compared
        for first, count in group.ranges
        for leaf in range(first, min(first + count, leaves))
    }


def _with_statistics(
    rows: Sequence[Shown], checkpoint: OpenCheckpoint, progress: Progress
) -> tuple[list[Shown], list[str]]:
    """The rows with statistics of their leaves, and lines about leaves that cannot be read.

    All of their chunks are read, and the digests checked; at most 256 MiB of leaves, or one leaf, are in memory.
    """
    wanted: dict[int | None, dict[int, KeyPath]] = {}
    for leaf in rows:
        for rank, number in leaf.numbers.items() if isinstance(leaf, Leaf) else ():
            wanted.setdefault(rank, {})[number] = leaf.keys
    views = {rank: checkpoint.as_rank(rank) for rank in sorted(wanted, key=lambda rank: -1 if rank is None else rank)}
    total = sum(views[rank].target.types[number].nbytes for rank in wanted for number in wanted[rank])
    found: dict[tuple[ExactPath, int | None], Stats | None] = {}
    problems, done = list[str](), 0
    for rank, view in views.items() if checkpoint.parts else ():
        types = view.target.types
        for batch in view.batches(wanted[rank]):
            arrays, damaged = view.read_sound(batch)
            problems += dict.fromkeys(map(one_line, damaged.values()))
            for number, array in arrays.items():
                found[exact(wanted[rank][number]), rank] = statistics(array, types[number])
            del arrays  # before the next ones are read
            done += sum(types[number].nbytes for number in batch)
            progress(done, total)

    def described(row: Shown) -> Shown:
        if not isinstance(row, Leaf):
            return row
        key = exact(row.keys)
        if row.per_rank is None:
            return replace(row, stats=found.get((key, None)))
        return replace(row, stats_per_rank={rank: found.get((key, rank)) for rank in row.per_rank})

    return list(map(described, rows)), problems
