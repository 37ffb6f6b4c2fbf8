"""Steps of this library by the names that DCP has for what is in them: of the session of a job, or of a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Protocol

import torch

from deeppart import Checkpointer, KeyFiles, access
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    RestoreError,
    StructureMismatchError,
    UnsupportedLeafError,
    as_error,
)
from deeppart.interop.dcp.metadata import Keys
from deeppart.interop.dcp.names import Item, by_name, is_one, walk_values
from deeppart.model import Box
from deeppart.offline.find import Chosen, find_step, with_checkpoint
from deeppart.offline.load import OpenCheckpoint, target_of
from deeppart.part import read_key_files
from deeppart.recovery import SavedStep
from deeppart.session import Looked
from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    SavedValue,
    array_numbers,
    walk_tree,
)
from deeppart.state.document.whole import with_wholes
from deeppart.state.restore.classes import resolve_registered
from deeppart.state.restore.composites import is_composite
from deeppart.state.restore.merge import build
from deeppart.state.restore.request import Asked, asked_of
from deeppart.state.restore.scatter import LiveBox
from deeppart.state.restore.target import DROPPED, Target
from deeppart.state.tree.composites import SUBCLASS
from deeppart.state.tree.leaves import TORCH_DTYPES, Array, is_plain
from deeppart.state.tree.paths import Path as KeyPath
from deeppart.state.tree.paths import readable
from deeppart.storage.manifests import committed_steps

#: What the live state has is restored, and nothing else.
_HERE_ALONE = asked_of(None, None, True, False, None, "keep", "ignore")


class Wanted(NamedTuple):
    """A box of a tensor that is asked for, and what it is put into, of the same sizes."""

    box: Box
    into: torch.Tensor


#: Names -> boxes that are asked for.
WantedByName = Mapping[str, Sequence[Wanted]]
Use = Callable[[dict[str, Any]], None]


class Source(Protocol):
    """Where steps are read from."""

    #: How many ranks read together; None: each by itself.
    ranks: int | None

    def newest(self) -> int | None:
        """The step that ``look(None)`` takes; None if there is none."""
        ...

    def look(self, step: int | None) -> Stored:
        """What a step holds, or the newest."""
        ...

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for of the step that was looked at."""
        ...

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise an error, instead of :meth:`bring`; on all ranks that read together."""
        ...


class SessionSource:
    """A job's session: every step that its levels have, from the cheapest source that is left. Calls are collective.

    What each rank had saved for itself it gets back; on another number of ranks, all get that of rank 0.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self.ranks: int | None = checkpointer.world_size
        self._step: Looked | None = None
        self._stored: Stored | None = None

    def newest(self) -> int | None:
        """The newest step that can be recovered; None if there is no checkpoint."""
        found = self._checkpointer._look(None)
        return None if found is None else found.saved.attempt.step

    def look(self, step: int | None) -> Stored:
        """What a step holds, or the newest that can be recovered."""
        self._stored = self._step = None
        found = self._checkpointer._look(step)
        if found is None:
            raise RestoreError("there is no checkpoint", where=str(self._checkpointer.config.persistent_dir))
        saved = found.saved
        self._step, self._stored = found, Stored(_target(saved, self._checkpointer.rank), f"step {saved.attempt.step}")
        return self._stored

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for, once every byte of it was checked.

        What is no tensor to DCP comes first: a step is restored as a whole, or not at all, but these are two restores.
        """
        stored, _ = self._looked()
        self._checkpointer._raise_together(None)  # a rank that refuses raises here, on all of them
        found = self._compounds(stored, compounds)
        self._checkpointer._raise_together(_failure_of(use, found))
        live: dict[int, Any] = {}
        later: list[tuple[torch.Tensor, Wanted]] = []
        asked = [(stored.entries[name], parts) for name, parts in wanted.items()]
        owners = _owners(stored.target, {entry.leaf for entry, _ in asked if entry.leaf is not None})
        for entry, parts in asked:
            assert entry.leaf is not None
            live[entry.leaf] = self._live(stored, entry, parts, later, entry.leaf in owners)
        for owner in owners - live.keys():
            kind = stored.target.types[owner]
            live[owner] = torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype])
        self._restore(live_tree(stored.tree, live), _HERE_ALONE)
        for source, want in later:
            want.into.copy_(source)

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise it, and on the other ranks an error that quotes it."""
        self._checkpointer._raise_together(error)
        raise AssertionError("an error of this rank is raised")

    def _looked(self) -> tuple[Stored, Looked]:
        if self._stored is None or self._step is None:
            raise CheckpointError("DCP reads before it has asked what there is", todo="load by dcp.load")
        return self._stored, self._step

    def _restore(self, live: Any, asked: Asked) -> None:
        _, step = self._looked()
        self._checkpointer._restore_looked(live, step, "strict" if step.saved.same_world else "rank0", asked)

    def _live(
        self,
        stored: Stored,
        entry: Entry,
        parts: Sequence[Wanted],
        later: list[tuple[torch.Tensor, Wanted]],
        is_owner: bool,
    ) -> torch.Tensor:
        """What stands in the live state for a leaf."""
        item, leaf = entry.item, entry.leaf
        assert item.shape is not None and item.dtype is not None and leaf is not None
        into = whole(parts, item)
        if into is not None:
            return into
        structure = stored.target.structure
        if is_owner or structure.per_rank[leaf] or leaf in structure.aliases:  # is filled as a whole, or not at all
            all_of = torch.empty(item.shape, dtype=item.dtype)
            later += [(all_of[part.box.slices()], part) for part in parts]
            return all_of
        tensors = []
        for part in parts:
            tensor = part.into
            if tensor.dtype != item.dtype:
                tensor = torch.empty(part.box.sizes, dtype=item.dtype)
                later.append((tensor, part))
            tensors.append(tensor)
        return Pieces(item.shape, [part.box for part in parts], tensors)

    def _compounds(self, stored: Stored, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        paths = [stored.entries[name].path for name in names]
        # Of a list, all of it or none.
        ends = [next((end for end, key in enumerate(path) if type(key) is int), len(path)) for path in paths]
        names_of = (readable(path[:end]) for path, end in zip(paths, ends, strict=True))
        keys = sorted({re.sub(r"[*?\[]", r"[\g<0>]", name) for name in names_of})  # as they are, no globs
        made: dict[Any, Any] = {}
        self._restore(made, asked_of(keys, None, True, False, None, None, None))
        found = {}
        for name, path in zip(names, paths, strict=True):
            item: Any = made
            for key in path:
                item = item[key]
            found[name] = item
        return found


class DirectorySource:
    """A persistent directory: each process reads by itself the chunks that it needs."""

    ranks: int | None = None

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0, sign_key_file: KeyFiles = None) -> None:
        self._root, self._rank, self._signing = Path(directory), rank, read_key_files(sign_key_file)
        self._looked: tuple[Chosen, Stored] | None = None

    def newest(self) -> int | None:
        """The newest committed step whose manifest is sound; None if there is no checkpoint."""
        with access.guarded(self._root, access.READING):
            if not committed_steps(self._root):
                return None
            found, _ = find_step(self._root, None, self._signing)
        return found.manifest.attempt.step

    def look(self, step: int | None) -> Stored:
        """What a committed step holds, or the newest whose manifest is sound."""

        def use(chosen: Chosen) -> tuple[Chosen, Stored]:
            with ExitStack() as files:
                target = self._open(files, chosen).target
            return chosen, Stored(target, str(chosen.directory))

        self._looked = None
        self._looked = chosen, stored = with_checkpoint(self._root, step, use, self._signing)
        chosen.tell()
        return stored

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for, once all of it was read and checked."""
        if self._looked is None:
            raise CheckpointError("DCP reads before it has asked what there is", todo="load by dcp.load")
        chosen, stored = self._looked
        with access.guarded(self._root, access.READING), ExitStack() as files:
            checkpoint = self._open(files, chosen)
            found = {}
            if compounds:
                leaves = {leaf for name in compounds for leaf in stored.leaves_in(name)}
                checkpoint.check(leaves)
                arrays = checkpoint.read(leaves)
                found = {name: stored.built(name, arrays) for name in compounds}
            use(found)
            later: list[tuple[torch.Tensor, Wanted]] = []
            boxes: dict[int, list[LiveBox]] = {}
            for name, parts in wanted.items():
                entry = stored.entries[name]
                assert entry.leaf is not None
                for part in parts:
                    memory = part.into
                    if memory.dtype != entry.item.dtype or not is_plain(memory):
                        memory = torch.empty(part.box.sizes, dtype=entry.item.dtype)
                        later.append((memory, part))
                    boxes.setdefault(entry.leaf, []).append(LiveBox(memory, part.box))
            checkpoint.read_boxes(boxes)
        for memory, part in later:
            part.into.copy_(memory)

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise it."""
        raise error

    def _open(self, files: ExitStack, chosen: Chosen) -> OpenCheckpoint:
        saved_by = chosen.manifest.attempt.world_size
        rank = min(self._rank, saved_by - 1)
        return OpenCheckpoint(files, chosen.directory, chosen.manifest, rank, signing=self._signing)


def _failure_of(use: Use, found: dict[str, Any]) -> DeeppartError | None:
    try:
        use(found)
    except Exception as error:  # of a class of the caller's: the other ranks wait
        return as_error(error, "what was restored cannot be handed to the planner")
    return None


def _owners(target: Target, wanted: Collection[int]) -> set[int]:
    """The leaves of which a wanted one was saved as a part: they are restored, too, and as a whole."""
    aliases = target.structure.aliases
    found = {leaf: aliases[leaf] for leaf in wanted if leaf in aliases}
    return {alias.owner for leaf, alias in found.items() if not target.is_twin(leaf, alias)}


def _target(step: SavedStep, rank: int) -> Target:
    """The step as a rank had it, or as rank 0 did where other ranks have saved it."""
    of_ranks, own = step.documents.of_ranks, step.documents.own
    seen_by = min(rank, len(of_ranks) - 1) if step.same_world else 0
    structure = with_wholes(of_ranks[seen_by], step.wholes)
    values = step.wholes.contents(rank if step.same_world else None)
    return target_of(structure, own[seen_by], values, f"step {step.attempt.step}")


# --- what a step holds ---


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that DCP has a name for, and where it stands in the saved state."""

    item: Item
    path: KeyPath
    #: Number of the leaf that is the tensor; None of anything else.
    leaf: int | None = None
    #: Of what has leaves in it, but is no tensor to DCP, such as a tuple of tensors; None of anything else.
    node: SavedNode | None = None
    #: Of a small value, itself.
    value: Any = None


class Stored:
    """What a step holds, as one rank sees it: :attr:`entries` by DCP's names."""

    def __init__(self, target: Target, where: str) -> None:
        self.target = target
        #: The saved nesting, with the caller's own classes where they are registered.
        self.tree = resolve_registered(target, target.structure.tree)
        tree = _inside(self.tree)
        is_table = isinstance(tree, SavedValue) and isinstance(target.values[tree.index], dict)
        if not (is_table or (isinstance(tree, SavedBranch) and tree.kind in DICTS)):
            raise StructureMismatchError(
                "DCP loads dicts, and this checkpoint is none",
                expected="a dict outermost",
                where=where,
                todo="load it by deeppart.load, or by Checkpointer.restore",
            )
        entries = {entry.item.path: entry for entry in self._walk(self.tree, (), ())}
        named = by_name((entry.item for entry in entries.values()), where)
        self.entries: Mapping[str, Entry] = {name: entries[item.path] for name, item in named.items()}

    def built(self, name: str, arrays: dict[int, Array]) -> Any:
        """What is no tensor to DCP, from its leaves."""
        node = self.entries[name].node
        assert node is not None
        return build(self.target, arrays, node)

    def refuse_to_build(self, name: str) -> None:
        """See that something that is no tensor to DCP can be made without a live one."""
        entry = self.entries[name]
        found = None if entry.node is None else _subclass_in(entry.node)
        if found is not None:
            raise UnsupportedLeafError(
                "a tensor of a subclass cannot be loaded by dcp.load: only its class could make it",
                found=f"a {found}",
                where=f"path {readable(entry.path)}",
                todo="restore it into a live one: Checkpointer.restore; or load what it is made of: deeppart.load",
            )

    def leaves_in(self, name: str) -> set[int]:
        """Numbers of the leaves in it."""
        node = self.entries[name].node
        return set() if node is None else array_numbers(node)

    def _walk(self, node: SavedNode, path: Keys, real: KeyPath) -> Iterator[Entry]:
        node = _inside(node)
        if isinstance(node, (SavedApart, SavedSharded)):
            return
        if isinstance(node, SavedValue):
            value = self.target.values[node.index]
            if value is DROPPED:
                return
            for inner, each in walk_values(value, path):
                yield Entry(Item(inner), real, value=each)
        elif isinstance(node, SavedArray):
            kind = self.target.types[node.index]
            if kind.kind == "torch":
                item = Item(path, TORCH_DTYPES[kind.dtype], kind.shape)
                yield Entry(item, real, leaf=node.index)
            else:
                yield Entry(Item(path), real, node=node)
        elif node.form is None and node.kind in DICTS:
            for key, child in zip(node.keys, node.children, strict=True):
                yield from self._walk(child, (*path, str(key)), (*real, key))
        elif node.kind == "list" and self._is_taken_apart(node):
            for place, child in enumerate(node.children):
                yield from self._walk(child, (*path, place), (*real, place))
        elif array_numbers(node):
            yield Entry(Item(path), real, node=node)
        else:
            yield Entry(Item(path), real, value=build(self.target, {}, node))

    def _is_taken_apart(self, node: SavedBranch) -> bool:
        """True if DCP would take a list apart."""
        for child in map(_inside, node.children):
            if isinstance(child, SavedArray):
                if self.target.types[child.index].kind == "torch":
                    return True
            elif isinstance(child, SavedBranch):
                if child.form is None and (child.kind in DICTS or is_composite(child)):
                    return True
                if child.kind == "list" and self._is_taken_apart(child):
                    return True
            elif isinstance(child, SavedValue):
                value = self.target.values[child.index]
                if isinstance(value, dict) or not is_one(value):
                    return True
        return False


def _subclass_in(node: SavedNode) -> str | None:
    """The name of the class of the first tensor of a subclass in it."""
    if not isinstance(node, SavedBranch):
        return None
    if node.kind == SUBCLASS:
        return node.name
    return next((found for child in node.children if (found := _subclass_in(child)) is not None), None)


def live_tree(tree: SavedNode, live: Mapping[int, Any]) -> dict[str, Any]:
    """A live state that has a place for some leaves of a saved one, and for nothing else.

    Places of lists that come before one that is wanted hold None.
    """
    found: dict[str, Any] | None = _live(tree, live)
    return _least(tree) if found is None else found


def _least(tree: SavedNode) -> dict[str, Any]:
    """A live state that wants one small thing: an empty one would want all, and one of other names is refused."""
    path = next(_values(tree, ()), None)
    if path is None:
        path = min((path for path, _ in walk_tree(tree, ())), default=())[:1]
    state: Any = None
    for key in reversed(path):
        state = {key: state}
    return state or {}


def _values(node: SavedNode, path: KeyPath) -> Iterator[KeyPath]:
    """Paths of small values that a live state of dicts alone can have, by names."""
    node = _inside(node)
    if isinstance(node, SavedValue) and path:
        yield path
    elif isinstance(node, SavedBranch) and node.form is None and node.kind in DICTS:
        for key, child in sorted(zip(node.keys, node.children, strict=True), key=lambda each: str(each[0])):
            if type(key) is str:
                yield from _values(child, (*path, key))


def _live(node: SavedNode, live: Mapping[int, Any]) -> Any:
    node = _inside(node)
    if isinstance(node, SavedArray):
        return live.get(node.index)
    if not isinstance(node, SavedBranch) or node.form is not None:
        return None
    children = [_live(child, live) for child in node.children]
    if all(child is None for child in children):
        return None
    if node.kind in DICTS:
        return {key: child for key, child in zip(node.keys, children, strict=True) if child is not None}
    return children if node.kind == "list" else None


def _inside(node: SavedNode) -> SavedNode:
    """What an object gave as its state."""
    while isinstance(node, SavedBranch) and node.kind == "object" and node.form is None:
        node = node.children[0]
    return node


def whole(wanted: Sequence[Wanted], item: Item) -> torch.Tensor | None:
    """What all of a tensor is to be put into, if that is asked for, and in its own type; else None."""
    if len(wanted) == 1 and wanted[0].box.sizes == item.shape and wanted[0].into.dtype == item.dtype:
        return wanted[0].into
    return None


class Pieces(torch.Tensor):
    """Boxes of a tensor that this rank has, by themselves, as something that the library takes for a sharded tensor.

    It says what it has by torch's protocol for checkpoints (:mod:`deeppart.state.tree.sharded`).
    """

    _whole: tuple[int, ...]
    _boxes: tuple[Box, ...]
    _tensors: tuple[torch.Tensor, ...]

    def __new__(cls, shape: Sequence[int], boxes: Sequence[Box], tensors: Sequence[torch.Tensor]) -> Pieces:
        """A tensor without elements of its own."""
        made: Pieces = torch.Tensor._make_subclass(cls, torch.empty(0, dtype=tensors[0].dtype))
        made._whole, made._boxes, made._tensors = tuple(shape), tuple(boxes), tuple(tensors)
        return made

    def __create_chunk_list__(self) -> list[Any]:
        return [SimpleNamespace(offsets=box.offset, sizes=box.sizes) for box in self._boxes]

    def __create_write_items__(self, fqn: str, item: Any) -> list[Any]:
        return [SimpleNamespace(tensor_data=SimpleNamespace(size=self._whole)) for _ in self._boxes]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        place: int = index.index
        return self._tensors[place]
