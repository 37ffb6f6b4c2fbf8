"""What of a checkpoint is exported, and its leaves, read a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.extension.export.beside import BesideFile, BesideFolder, Stream
from deeppart.offline import BATCH_BYTES, OpenCheckpoint
from deeppart.state.paths import Path, readable
from deeppart.state.restore import build
from deeppart.state.tensors import COMPOSITES, SUBCLASS, Array, LeafType, flat_bytes
from deeppart.state.tree import ArrayLeaf, Branch, LeafNumbers, Node, ValueLeaf, contiguous_strides, inside_objects

#: From this length on a leaf has chunks of its own, which it can be read by.
_LARGE_BYTES = 1 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Totals:
    """What was written.

    Attributes:
        leaves, values: how many of each.
        per_rank: how many of them were saved by each rank for itself.
        nbytes: bytes of the leaves.
        remarks: lines about what stands there otherwise than in the checkpoint.
        files: how many.
    """

    leaves: int
    values: int
    per_rank: int
    nbytes: int
    remarks: tuple[str, ...] = ()
    files: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """A leaf or a small value of a checkpoint; or a container that has nothing in it.

    Attributes:
        path: its keys.
        leaf: number of the leaf; None of anything else.
        value: the small value.
        is_own: one rank's, of which others may have saved something else.
        is_empty: true of a container without items.
        composite: kind of the tensor that it is a component of: "sparse_coo", "quantized", "jagged", ...; "" of none.
    """

    path: Path
    leaf: int | None = None
    value: Any = None
    is_own: bool = False
    is_empty: bool = False
    composite: str = ""


class Content:
    """What a writer of a format is given: a checkpoint, or the part of it that is exported, and where to write it.

    Attributes:
        checkpoint, suspect, out, progress: as given.
        tree: what is exported.
        leaves: numbers of the leaves in it.
    """

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        keys: Sequence[str] | None = None,
        inner: str | None = None,
        suspect: Sequence[str] = (),
        *,
        out: BesideFile | BesideFolder | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.checkpoint, self.suspect = checkpoint, tuple(suspect)
        self.out, self.progress = out, progress
        self.tree, self.leaves = checkpoint.select(keys)
        if inner is not None:
            self.tree = _descend(self.tree, inner)
            self.leaves = LeafNumbers.of(self.tree).arrays
        checkpoint.check(self.leaves)

    @property
    def step(self) -> int:
        """The number of the step."""
        return self.checkpoint.manifest.attempt.step

    def stream_to(self) -> AbstractContextManager[Stream]:
        """The one file of the archive, to be written from the first byte to the last."""
        assert isinstance(self.out, BesideFile), "the format has one file"
        return self.out.stream()

    @contextmanager
    def file(self, name: str) -> Iterator[Stream]:
        """A file in the directory of the archive, likewise; it has its name once the block ends."""
        assert isinstance(self.out, BesideFolder), "the format has a directory"
        with self.out.file(name) as file:
            with file.stream() as stream:
                yield stream
            file.finish()

    def rows(self) -> Iterator[Row]:
        """Leaves, values and empty containers, in the order of the state."""
        return self._rows(self.tree, (), "")

    def _rows(self, node: Node, path: Path, composite: str) -> Iterator[Row]:
        structure = self.checkpoint.structure
        if isinstance(node, ArrayLeaf):
            yield Row(path, node.index, is_own=bool(structure.per_rank[node.index]), composite=composite)
        elif isinstance(node, ValueLeaf):
            own = bool(structure.per_rank_values[node.index])
            yield Row(path, value=self.checkpoint.target.values[node.index], is_own=own, composite=composite)
        elif isinstance(node, Branch):
            if not node.children:
                yield Row(path, is_empty=True, composite=composite)
            kind = node.kind if node.kind in COMPOSITES and node.kind != SUBCLASS else composite
            for inner, child in node.items(path):
                yield from self._rows(child, inner, kind)

    def path_of(self, leaf: int) -> str:
        """The path of a leaf, for people."""
        return readable(self.checkpoint.structure.array_paths()[leaf])

    def state(self, arrays: Mapping[int, Array]) -> tuple[Any, list[str]]:
        """The state, as :func:`deeppart.load` would give it of these leaves; objects are their data.

        Returns:
            the state, and the paths of what is an object in the checkpoint.
        """
        target, objects = self.checkpoint.target, list[str]()
        target.dropped = frozenset(set(range(len(self.types))) - self.leaves)
        return build(target, dict(arrays), _without_forms(self.tree, (), objects)), objects

    def view_of(self, leaf: int, others: Collection[int]) -> tuple[int, int, tuple[int, ...]]:
        """Where a leaf has its elements: one of ``others`` that it is a view of, its first element there, and strides.

        Of a leaf that is a view of none, itself.
        """
        alias, types = self.checkpoint.structure.aliases.get(leaf), self.types
        if (
            alias is not None
            and alias.owner in others
            and types[leaf].kind == "torch"
            and types[alias.owner].dtype == types[leaf].dtype
        ):
            return alias.owner, alias.offset // types[leaf].itemsize, alias.strides
        return leaf, 0, contiguous_strides(types[leaf].shape)

    @property
    def types(self) -> Sequence[LeafType]:
        """Of all leaves of the checkpoint, by number."""
        return self.checkpoint.target.types

    def totals(self, remarks: Sequence[str] = (), files: int = 1) -> Totals:
        """The sizes of it; components of a tensor that are small values are not counted."""
        rows = [row for row in self.rows() if not row.is_empty and (row.leaf is not None or not row.composite)]
        nbytes = sum(self.types[leaf].nbytes for leaf in self.leaves)
        own = sum(row.is_own for row in rows)
        return Totals(len(self.leaves), len(rows) - len(self.leaves), own, nbytes, tuple(remarks), files)

    def refuse_repeats(self) -> None:
        """Refuse expanded tensors, which are small here and would be large elsewhere."""
        for leaf in sorted(self.leaves & self.checkpoint.structure.aliases.keys()):
            if (refusal := self.checkpoint.repeats(leaf)) is not None:
                raise refusal

    def same_as(self, leaf: int) -> int | None:
        """Another one of the leaves that are exported, which a leaf is in all but its path; None if there is none."""
        alias = self.checkpoint.structure.aliases.get(leaf)
        if alias is None or alias.owner not in self.leaves or alias.offset:
            return None
        same_type = self.types[alias.owner] == self.types[leaf]
        return alias.owner if same_type and alias.strides == contiguous_strides(self.types[leaf].shape) else None

    def read(self, order: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Leaves in an order, checked; some MiB of them are in memory at a time, or one that is larger."""
        batch: list[int] = []
        room = BATCH_BYTES
        for leaf in order:
            if batch and room < self.types[leaf].nbytes:
                yield from self._read_batch(batch)
                batch, room = [], BATCH_BYTES
            batch.append(leaf)
            room -= self.types[leaf].nbytes
        if batch:
            yield from self._read_batch(batch)

    def _read_batch(self, batch: list[int]) -> Iterator[tuple[int, Array]]:
        arrays = self.checkpoint.read(set(batch))
        for leaf in batch:
            yield leaf, arrays[leaf]

    def stream(self, order: Sequence[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of leaves in an order, checked: little endian, in C order, each piece good until the next one.

        Large ones come as their chunks are read, so that none is in memory as a whole unless it is sharded, or a view
        of another.
        """
        small: list[int] = []
        room = BATCH_BYTES
        for leaf in order:
            nbytes = self.types[leaf].nbytes
            pieces = self.checkpoint.stream(leaf) if nbytes >= _LARGE_BYTES and _is_little(self.types[leaf]) else None
            if small and (pieces is not None or room < nbytes):
                yield from self._stream_batch(small)
                small, room = [], BATCH_BYTES
            if pieces is not None:
                yield leaf, pieces
                continue
            small.append(leaf)
            room -= nbytes
        yield from self._stream_batch(small)

    def _stream_batch(self, batch: list[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        for leaf, array in self._read_batch(batch) if batch else ():
            yield leaf, (_octets(array, self.types[leaf]),)


def _is_little(kind: LeafType) -> bool:
    return kind.kind == "torch" or not kind.dtype.startswith(">")


def _octets(array: Array, kind: LeafType) -> memoryview:
    """The bytes of a leaf in C order, little endian."""
    if isinstance(array, torch.Tensor):
        return flat_bytes(array.contiguous()).data
    ordered = np.ascontiguousarray(array, dtype=np.dtype(kind.dtype).newbyteorder("<"))
    return flat_bytes(ordered).data


def _without_forms(node: Node, path: Path, objects: list[str]) -> Node:
    """A tree in which objects are their data; their paths are added to ``objects``."""
    if not isinstance(node, Branch) or node.kind in COMPOSITES:
        return node
    if node.form is not None:
        objects.append(readable(path))
    children = tuple(_without_forms(child, inner, objects) for inner, child in node.items(path))
    return replace(node, children=children, form=None)


def _descend(tree: Node, inner: str) -> Node:
    """The container at a path."""
    wanted, node, path = inner.strip("/"), tree, ""
    while path != wanted:
        node = inside_objects(node)
        inside = zip(node.keys, node.children, strict=True) if isinstance(node, Branch) else ()
        for key, child in inside:
            below = f"{path}/{readable((key,))}" if path else readable((key,))
            if wanted == below or wanted.startswith(f"{below}/"):
                path, node = below, child
                break
        else:
            raise _no_container(inner)
    node = inside_objects(node)
    if not isinstance(node, Branch):
        raise _no_container(inner)
    return node


def _no_container(inner: str) -> StructureMismatchError:
    return StructureMismatchError(
        "there is no such container in the checkpoint",
        expected="the path of a dict, a list or an object",
        found=inner,
        todo="`deeppart show DIR` lists the paths",
    )
