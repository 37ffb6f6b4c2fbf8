"""One leaf of a checkpoint, one small value, or a small subtree, found by its path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppart.errors import StateError, StructureMismatchError
from deeppart.model import Manifest, show_bytes
from deeppart.offline.elements import Numbers, as_numpy, octets_of
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.reading import BATCH_BYTES, OpenCheckpoint
from deeppart.part import Signing
from deeppart.state.paths import Path as KeyPath
from deeppart.state.paths import covers, nearest_globs, readable, some_names
from deeppart.state.tensors import Array, LeafType
from deeppart.state.tree import ArrayLeaf, Branch, Node, ValueLeaf, container_items, container_kind
from deeppart.state.values import CONTAINERS


@dataclass(frozen=True, slots=True)
class Item:
    """A leaf or small value that was read.

    Attributes:
        path: components joined by ``/``.
        kind: type of a tensor or array; None of a small value.
        content: the tensor, the array, or the value.
        own: true if the rank has saved it for itself.
        form: what a small value is all of the data of, as text: ``deque(maxlen=9)``; None if of nothing.
    """

    path: str
    kind: LeafType | None
    content: Any
    own: bool
    form: str | None = None

    def as_numpy(self) -> Numbers:
        """A leaf as numpy's array of its shape."""
        assert self.kind is not None
        return as_numpy(self.content, self.kind)

    def octets(self) -> memoryview:
        """The bytes of all elements of a leaf, in C order."""
        return octets_of(self.content).data


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path.

    Attributes:
        manifest: of the step.
        items: what was read, in the order saved.
        is_container: true if these stand below the path.
        remarks: lines about newer steps that cannot be used, and leaves that are suspect.
    """

    manifest: Manifest
    items: tuple[Item, ...]
    is_container: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Something in the tree: a node, or an item of the container of small values at one."""

    path: str
    node: Node
    item: Any = None
    inside_value: bool = False
    form: str | None = None


def read_single(root: Path, key: str, step: int | None = None, rank: int = 0, signing: Signing | None = None) -> Found:
    """Read what is at one path."""
    require_directory(root)

    def use(chosen: Chosen) -> Found:
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files, chosen.directory, chosen.manifest, rank, signing=signing)
            place = _find(checkpoint, key)
            is_container = isinstance(place.node, Branch)
            return Found(chosen.manifest, tuple(_read(checkpoint, place)), is_container, chosen.remarks)

    return with_checkpoint(root, step, use, signing)


def _find(checkpoint: OpenCheckpoint, key: str) -> _Place:
    places = list(_places(checkpoint, checkpoint.structure.tree, ()))
    found = [place for place in places if place.path == key]
    if not found:
        leaves = [place for place in places if not isinstance(place.node, Branch) and not place.inside_value]
        found = [place for place in leaves if covers(place.path, [key], container=False)]
    if not found:
        found = [
            place
            for node in places
            if isinstance(node.node, ValueLeaf) and not node.inside_value
            for place in _container_places(checkpoint.target.values[node.node.index], node)
            if place.path == key
        ]
    if len(found) == 1:
        return found[0]
    where = str(checkpoint.directory)
    if found:
        names = some_names([place.path for place in found])
        raise StructureMismatchError(
            "more than one leaf or value matches",
            expected="one path",
            found=names,
            where=where,
            todo="name one of them",
        )
    paths = list(dict.fromkeys(place.path for place in places))
    near = nearest_globs(key, paths)
    raise StructureMismatchError(
        "there is nothing at this path",
        expected=f"one of {len(paths)} paths" + (f", such as {', '.join(near)}" if near else ""),
        found=repr(key),
        where=where,
        todo="`deeppart show DIR` lists the paths",
    )


def _places(checkpoint: OpenCheckpoint, node: Node, path: KeyPath) -> Iterator[_Place]:
    """All that has a path, but for what is inside value containers; an object is what its ``state_dict()`` returned."""
    form = None
    while isinstance(node, Branch) and node.kind == "object":
        form, node = (None if node.form is None else str(node.form)), node.children[0]
    yield _Place(readable(path), node, form=form)
    if isinstance(node, Branch):
        for key, child in zip(node.keys, node.children, strict=True):
            yield from _places(checkpoint, child, (*path, key))


def _container_places(value: Any, above: _Place) -> Iterator[_Place]:
    """The items of a container of small values, and what is in these."""
    if container_kind(value) is None:
        return
    for key, item in zip(*container_items(value), strict=True):
        place = _Place(f"{above.path}/{readable((key,))}", above.node, item, inside_value=True)
        yield place
        if type(item) in CONTAINERS:
            yield from _container_places(item, place)


def _read(checkpoint: OpenCheckpoint, place: _Place) -> Iterator[Item]:
    nodes = [each for each in _places_below(checkpoint, place) if not isinstance(each.node, Branch)]
    leaves = {each.node.index for each in nodes if isinstance(each.node, ArrayLeaf)}
    _check_size(checkpoint, leaves, place.path)
    checkpoint.check(leaves)
    arrays: dict[int, Array] = checkpoint.read(leaves) if leaves else {}
    for each in nodes:
        if isinstance(each.node, ArrayLeaf):
            index = each.node.index
            own = checkpoint.is_own_leaf(index)
            yield Item(each.path, checkpoint.target.types[index], arrays[index], own)
        elif isinstance(each.node, ValueLeaf):
            value = each.item if each.inside_value else checkpoint.target.values[each.node.index]
            yield Item(each.path, None, value, checkpoint.is_own_value(each.node.index), each.form)


def _places_below(checkpoint: OpenCheckpoint, place: _Place) -> Iterator[_Place]:
    if not isinstance(place.node, Branch):
        yield place
        return
    for each in _places(checkpoint, place.node, ()):
        path = each.path if place.path == readable(()) else f"{place.path}/{each.path}"
        yield _Place(path, each.node, form=each.form)


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
