"""The content to export: structure of a checkpoint, and its leaves, read in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.extension.export.output import OutputFile, OutputFolder, Stream
from deeppart.offline import OpenCheckpoint, Row, in_batches
from deeppart.state.paths import Path, readable
from deeppart.state.restore import build
from deeppart.state.tensors import COMPOSITES, Array, LeafType, flat_bytes
from deeppart.state.tree import ArrayLeaf, Branch, Node, contiguous_strides, inside_objects, numbers_in

Progress = Callable[[int, int], None]


class Content:
    """The input of a writer: the exported part of a checkpoint, and the output.

    Attributes:
        checkpoint, suspect, out, progress: as passed.
        tree: structure of the exported part.
        leaves: numbers of the exported leaves.
    """

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        keys: Sequence[str] | None = None,
        inner: str | None = None,
        suspect: Sequence[str] = (),
        *,
        out: OutputFile | OutputFolder | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.checkpoint, self.suspect = checkpoint, tuple(suspect)
        self.out, self.progress = out, progress
        self.tree, self.leaves = checkpoint.select(keys)
        if inner is not None:
            self.tree = _descend(self.tree, inner)
            self.leaves = numbers_in(self.tree, ArrayLeaf)
        checkpoint.check(self.leaves)

    @property
    def step(self) -> int:
        """The number of the step."""
        return self.checkpoint.step.key.step

    def stream_to(self) -> AbstractContextManager[Stream]:
        """The stream of a single-file archive, written sequentially."""
        assert isinstance(self.out, OutputFile), "the format has one file"
        return self.out.stream()

    @contextmanager
    def file(self, name: str) -> Iterator[Stream]:
        """The stream of a file in the archive's directory; the file gets its name when the block ends."""
        assert isinstance(self.out, OutputFolder), "the format has a directory"
        with self.out.file(name) as file:
            with file.stream() as stream:
                yield stream
            file.finish()

    def rows(self) -> Iterator[Row]:
        """Leaves, values and empty containers, in the order of the state."""
        return (row for row in self.checkpoint.rows(self.tree) if not isinstance(row.node, Branch) or row.is_empty)

    def path_of(self, leaf: int) -> str:
        """The path of a leaf as text."""
        return readable(self.checkpoint.paths[leaf])

    def state(self, arrays: Mapping[int, Array]) -> tuple[Any, list[str]]:
        """Build the state from arrays, as :func:`deeppart.load` does, with objects as their data.

        Returns:
            The state, and the paths of the objects.
        """
        target, objects = self.checkpoint.target, list[str]()
        target.dropped = frozenset(self.types.keys() - self.leaves)
        return build(target, dict(arrays), _without_forms(self.tree, (), objects)), objects

    def view_of(self, leaf: int, others: Collection[int]) -> tuple[int, int, tuple[int, ...]]:
        """The base of a leaf: owner (one of ``others``, or the leaf itself), offset in elements, and strides."""
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
    def types(self) -> Mapping[int, LeafType]:
        """The types of all leaves of the checkpoint, by number."""
        return self.checkpoint.target.types

    def refuse_repeats(self) -> None:
        """Raise an error for expanded tensors, which would be much larger in the export."""
        for leaf in sorted(self.leaves & self.checkpoint.structure.aliases.keys()):
            if (refusal := self.checkpoint.repeats(leaf)) is not None:
                raise refusal

    def same_as(self, leaf: int) -> int | None:
        """The exported leaf with the same elements, shape and order; None if there is none."""
        alias = self.checkpoint.structure.aliases.get(leaf)
        if alias is None or alias.owner not in self.leaves or alias.offset:
            return None
        same_type = self.types[alias.owner] == self.types[leaf]
        return alias.owner if same_type and alias.strides == contiguous_strides(self.types[leaf].shape) else None

    def read(self, order: Iterable[int]) -> Iterator[tuple[int, Array]]:
        """Read and verify leaves in the given order, in batches of some MiB, or one larger leaf."""
        for batch in in_batches(order, lambda leaf: self.types[leaf].nbytes):
            arrays = self.checkpoint.read(set(batch))
            yield from ((leaf, arrays[leaf]) for leaf in batch)
            del arrays  # before the next ones are read

    def stream(self, order: Sequence[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The verified bytes of leaves in the given order, little endian and in C order."""
        return ((leaf, (_little_endian(array, self.types[leaf]),)) for leaf, array in self.read(order))


def _little_endian(array: Array, kind: LeafType) -> memoryview:
    """The bytes of a leaf in C order."""
    if isinstance(array, torch.Tensor):
        return flat_bytes(array.contiguous()).data
    ordered = np.ascontiguousarray(array, dtype=np.dtype(kind.dtype).newbyteorder("<"))
    return flat_bytes(ordered).data


def _without_forms(node: Node, path: Path, objects: list[str]) -> Node:
    """A tree with objects replaced by their data; their paths are added to ``objects``."""
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
