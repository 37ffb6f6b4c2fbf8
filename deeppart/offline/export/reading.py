"""What of a checkpoint is exported, and its leaves, read a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.offline.batches import BATCH_BYTES, repeats
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.document.structure import SavedBranch, SavedNode, array_numbers
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.leaves import Array, LeafType, flat_bytes
from deeppart.state.tree.paths import readable

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


class Content:
    """The part of a checkpoint that globs cover, below one of its containers.

    Attributes:
        checkpoint, suspect: as given.
        tree: what is exported.
        leaves: numbers of the leaves in it.
    """

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        keys: Sequence[str] | None = None,
        inner: str | None = None,
        suspect: Sequence[str] = (),
    ) -> None:
        self.checkpoint, self.suspect = checkpoint, tuple(suspect)
        self.tree, self.leaves = checkpoint.select(keys)
        if inner is not None:
            self.tree = _descend(self.tree, inner)
            self.leaves = array_numbers(self.tree)
        checkpoint.check(self.leaves)

    @property
    def types(self) -> Sequence[LeafType]:
        """Of all leaves of the checkpoint, by number."""
        return self.checkpoint.target.types

    def totals(self, values: int, own_values: int, remarks: Sequence[str] = (), files: int = 1) -> Totals:
        """The sizes of it."""
        own = self.checkpoint.structure.per_rank[sorted(self.leaves)].sum() if self.leaves else 0
        nbytes = sum(self.types[leaf].nbytes for leaf in self.leaves)
        return Totals(len(self.leaves), values, int(own) + own_values, nbytes, tuple(remarks), files)

    def refuse_repeats(self) -> None:
        """Refuse expanded tensors, which are small here and would be large elsewhere."""
        for leaf in sorted(self.leaves & self.checkpoint.structure.aliases.keys()):
            if (refusal := repeats(self.checkpoint, leaf)) is not None:
                raise refusal

    def is_same(self, leaf: int) -> bool:
        """True if a leaf is another one of those that are exported, in all but its place (:attr:`Alias.owner`)."""
        alias = self.checkpoint.structure.aliases.get(leaf)
        if alias is None or alias.owner not in self.leaves or alias.offset:
            return False
        same_type = self.types[alias.owner] == self.types[leaf]
        return same_type and alias.strides == contiguous_strides(self.types[leaf].shape)

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


def _descend(tree: SavedNode, inner: str) -> SavedNode:
    """The container at a path."""
    wanted, node, path = inner.strip("/"), tree, ""
    while path != wanted:
        while isinstance(node, SavedBranch) and node.kind == "object":
            node = node.children[0]
        inside = zip(node.keys, node.children, strict=True) if isinstance(node, SavedBranch) else ()
        for key, child in inside:
            below = f"{path}/{readable((key,))}" if path else readable((key,))
            if wanted == below or wanted.startswith(f"{below}/"):
                path, node = below, child
                break
        else:
            raise _no_container(inner)
    while isinstance(node, SavedBranch) and node.kind == "object":
        node = node.children[0]
    if not isinstance(node, SavedBranch):
        raise _no_container(inner)
    return node


def _no_container(inner: str) -> StructureMismatchError:
    return StructureMismatchError(
        "there is no such container in the checkpoint",
        expected="the path of a dict, a list or an object",
        found=inner,
        todo="`deeppart show DIR` lists the paths",
    )
