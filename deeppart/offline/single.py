"""Reads one leaf, small value or small container of a checkpoint by its path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from deeppart.errors import StateError, StructureMismatchError
from deeppart.model import Manifest, show_bytes
from deeppart.offline.elements import Numbers, as_numpy, octets_of
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.reading import BATCH_BYTES, OpenCheckpoint, Row
from deeppart.part import Signing
from deeppart.state.paths import covers, nearest_globs, some_names
from deeppart.state.tensors import Array, LeafType
from deeppart.state.tree import ArrayLeaf, Branch, ValueLeaf

#: Limit for JSON, which takes 100 times the memory of the elements.
MOST_JSON_ELEMENTS = 10_000_000


@dataclass(frozen=True, slots=True)
class ReadLeaf:
    """A tensor or array that was read. Fields: docs/commands.md, cat."""

    json_also: ClassVar = ("kind", "data", "form")
    kind: ClassVar = "leaf"
    form: ClassVar = None

    path: str
    type: LeafType
    content: Array = field(metadata={"json": False})
    own: bool

    def as_numpy(self) -> Numbers:
        """The elements as a numpy array of its shape."""
        return as_numpy(self.content, self.type)

    def octets(self) -> memoryview:
        """The bytes of all elements, in C order."""
        return octets_of(self.content).data

    @property
    def data(self) -> Numbers:
        """The elements, for JSON."""
        array = self.as_numpy()
        if array.size > MOST_JSON_ELEMENTS:
            raise StateError(
                "a leaf has too many elements for JSON",
                expected=f"at most {MOST_JSON_ELEMENTS}",
                found=f"{array.size} of {self.type}",
                where=f"path {self.path}",
                todo="take the bytes (--npy, --raw)",
            )
        return array


@dataclass(frozen=True, slots=True)
class ReadValue:
    """A small value that was read. Fields: docs/commands.md, cat."""

    json_also: ClassVar = ("kind", "type")
    kind: ClassVar = "value"

    path: str
    value: Any = field(metadata={"json": "value"})
    own: bool
    form: str | None = None

    @property
    def type(self) -> str:
        """The Python type."""
        return type(self.value).__name__


@dataclass(frozen=True, slots=True)
class Found:
    """The content at a path. Fields: docs/commands.md, cat.

    Attributes:
        is_container: true if the leaves are below the path.
    """

    directory: Path
    manifest: Manifest
    rank: int
    leaves: tuple[ReadLeaf | ReadValue, ...]
    is_container: bool = field(metadata={"json": False})
    remarks: tuple[str, ...]
    signature_checked: bool


def read_single(root: Path, key: str, step: int | None = None, rank: int = 0, signing: Signing | None = None) -> Found:
    """Read the content at a path."""

    def use(chosen: Chosen) -> Found:
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files, chosen.step, rank)
            row = _find(checkpoint, key)
            is_container, leaves = isinstance(row.node, Branch), tuple(_read(checkpoint, row))
            return Found(root, chosen.manifest, rank, leaves, is_container, chosen.remarks, signing is not None)

    return with_checkpoint(root, step, use, signing)


def _find(checkpoint: OpenCheckpoint, key: str) -> Row:
    rows = list(checkpoint.rows())
    found = [row for row in rows if row.name == key]
    if not found:
        leaves = [row for row in rows if not isinstance(row.node, Branch)]
        found = [row for row in leaves if covers(row.name, [key], container=False)]
    if not found:
        found = [row for row in checkpoint.rows(items=True) if row.name == key]
    if len(found) == 1:
        return found[0]
    where = checkpoint.step.where
    if found:
        raise StructureMismatchError(
            "more than one leaf or value matches",
            expected="one path",
            found=some_names([row.name for row in found]),
            where=where,
            todo="name one of them",
        )
    paths = list(dict.fromkeys(row.name for row in rows))
    near = nearest_globs(key, paths)
    raise StructureMismatchError(
        "there is nothing at this path",
        expected=f"one of {len(paths)} paths" + (f", such as {', '.join(near)}" if near else ""),
        found=repr(key),
        where=where,
        todo="`deeppart show DIR` lists the paths",
    )


def _read(checkpoint: OpenCheckpoint, row: Row) -> Iterator[ReadLeaf | ReadValue]:
    rows = list(checkpoint.rows(row.node, row.path)) if isinstance(row.node, Branch) else [row]
    leaves = {each.node.index for each in rows if isinstance(each.node, ArrayLeaf)}
    _check_size(checkpoint, leaves, row.name)
    checkpoint.check(leaves)
    arrays: dict[int, Array] = checkpoint.read(leaves) if leaves else {}
    for each in rows:
        if isinstance(each.node, ArrayLeaf):
            index = each.node.index
            yield ReadLeaf(each.name, checkpoint.target.types[index], arrays[index], each.own)
        elif isinstance(each.node, ValueLeaf):
            yield ReadValue(each.name, each.value, each.own, each.form)


def _check_size(checkpoint: OpenCheckpoint, leaves: set[int], path: str) -> None:
    for leaf in sorted(leaves):
        if (refusal := checkpoint.repeats(leaf)) is not None:
            raise refusal
    nbytes = sum(checkpoint.target.types[leaf].nbytes for leaf in leaves)
    if len(leaves) > 1 and nbytes > BATCH_BYTES:
        raise StateError(
            "there is too much below this path",
            expected=f"at most {show_bytes(BATCH_BYTES)} of leaves, or one leaf",
            found=f"{len(leaves)} leaves of {show_bytes(nbytes)}",
            where=f"path {path}",
            todo="name a leaf, or export them: `deeppart export DIR FILE --keys KEY`",
        )
