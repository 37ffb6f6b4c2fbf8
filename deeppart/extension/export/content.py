"""What of a checkpoint is exported, and its leaves, read a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.extension.export.beside import BesideFile, BesideFolder, Stream
from deeppart.offline import OpenCheckpoint, Row, in_batches
from deeppart.state.paths import Path, readable
from deeppart.state.restore import build
from deeppart.state.tensors import COMPOSITES, Array, LeafType, flat_bytes
from deeppart.state.tree import Branch, LeafNumbers, Node, contiguous_strides, inside_objects

#: From this length on a leaf has chunks of its own, so that it can be read separately.
_LARGE_BYTES = 1 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Totals:
    """What was written.

    Attributes:
        leaves, values: how many of each.
        per_rank: how many of them were saved by each rank for itself.
        nbytes: bytes of the leaves.
        remarks: lines about content that differs from the checkpoint.
        files: how many.
    """

    leaves: int
    values: int
    per_rank: int
    nbytes: int
    remarks: tuple[str, ...] = ()
    files: int = 1


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
        return self.checkpoint.step.key.step

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
        return (row for row in self.checkpoint.rows(self.tree) if not isinstance(row.node, Branch) or row.is_empty)

    def path_of(self, leaf: int) -> str:
        """The path of a leaf, for people."""
        return readable(self.checkpoint.paths[leaf])

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
        own = sum(row.own for row in rows)
        return Totals(len(self.leaves), len(rows) - len(self.leaves), own, nbytes, tuple(remarks), files)

    def refuse_repeats(self) -> None:
        """Refuse expanded tensors, which are small here and would be large in the export."""
        for leaf in sorted(self.leaves & self.checkpoint.structure.aliases.keys()):
            if (refusal := self.checkpoint.repeats(leaf)) is not None:
                raise refusal

    def same_as(self, leaf: int) -> int | None:
        """The exported leaf that differs from a leaf only in its path; None if there is none."""
        alias = self.checkpoint.structure.aliases.get(leaf)
        if alias is None or alias.owner not in self.leaves or alias.offset:
            return None
        same_type = self.types[alias.owner] == self.types[leaf]
        return alias.owner if same_type and alias.strides == contiguous_strides(self.types[leaf].shape) else None

    def read(self, order: Iterable[int]) -> Iterator[tuple[int, Array]]:
        """Leaves in an order, checked; some MiB of them are in memory at a time, or one that is larger."""
        for batch in in_batches(order, lambda leaf: self.types[leaf].nbytes):
            arrays = self.checkpoint.read(set(batch))
            yield from ((leaf, arrays[leaf]) for leaf in batch)

    def stream(self, order: Sequence[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of leaves in an order, checked: little endian, in C order, each piece good until the next one.

        Large ones come as their chunks are read, so that none is in memory as a whole unless it is sharded, or a view
        of another.
        """
        for by_chunks, leaves in groupby(order, self._has_own_chunks):
            if by_chunks:
                yield from ((leaf, self.checkpoint.stream(leaf)) for leaf in leaves)
            else:
                yield from ((leaf, (_octets(array, self.types[leaf]),)) for leaf, array in self.read(leaves))

    def _has_own_chunks(self, leaf: int) -> bool:
        kind = self.types[leaf]
        return kind.nbytes >= _LARGE_BYTES and _is_little(kind) and self.checkpoint.is_in_one_row(leaf)


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
