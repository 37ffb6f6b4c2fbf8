"""Steps of this library by the names that DCP has for what is in them: of the session of a job, or of a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import torch

import deeppart
from deeppart import Checkpointer
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    RestoreError,
    StructureMismatchError,
    UnsupportedLeafError,
    as_error,
)
from deeppart.extension import Box, Step, readable
from deeppart.interop.dcp.metadata import Keys
from deeppart.interop.dcp.names import Item, by_name, walk
from deeppart.types import KeyFiles


class WantedBox(NamedTuple):
    """A requested box of a tensor, and the tensor of the same sizes to fill."""

    box: Box
    into: torch.Tensor


#: Names -> requested boxes.
BoxesByName = Mapping[str, Sequence[WantedBox]]
Use = Callable[[dict[str, Any]], None]


# --- what a step holds ---


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that DCP has a name for.

    Attributes:
        item: how DCP sees it.
        path: its keys in the saved state.
        value: the small value; or what stands for leaves, as of :class:`deeppart.extension.Step`.
        is_compound: true of what has leaves in it, but is no tensor to DCP, such as a tuple of tensors.
    """

    item: Item
    path: tuple[Any, ...]
    value: Any
    is_compound: bool

    @property
    def leaf(self) -> int | None:
        """Number of the leaf that is the tensor; None of anything else."""
        return getattr(self.value, "leaf", None)


class Stored:
    """What a step holds, as one rank sees it: :attr:`entries` by DCP's names."""

    def __init__(self, step: Step) -> None:
        self.step = step
        if not isinstance(step.state, dict):
            raise StructureMismatchError(
                "DCP loads dicts, and this checkpoint is none",
                expected="a dict outermost",
                where=step.where,
                todo="load it by deeppart.load, or by Checkpointer.restore",
            )
        entries: dict[Keys, Entry] = {}
        for path, keys, value in walk(step.state):
            is_leaf = getattr(value, "leaf", None) is not None
            item = Item(path, value.dtype, value.shape) if is_leaf else Item(path)
            entries[path] = Entry(item, keys, value, not is_leaf and any(_stored_in(value)))
        named = by_name((entry.item for entry in entries.values()), step.where)
        self.entries: Mapping[str, Entry] = {name: entries[item.path] for name, item in named.items()}

    def refuse_to_build(self, name: str) -> None:
        """See that something that is no tensor to DCP can be made without a live one."""
        entry = self.entries[name]
        subclass = next((each.subclass for each in _stored_in(entry.value) if each.subclass), None)
        if subclass is not None:
            raise UnsupportedLeafError(
                "a tensor of a subclass cannot be loaded by dcp.load: only its class could make it",
                found=f"a {subclass}",
                where=f"path {readable(entry.path)}",
                todo="restore it into a live one: Checkpointer.restore; or load what it is made of: deeppart.load",
            )

    def globs(self, names: Sequence[str]) -> list[str]:
        """Globs that cover what DCP calls so, and nothing else; of a list, all of it."""
        found = set()
        for name in names:
            path = self.entries[name].path
            end = next((end for end, key in enumerate(path) if type(key) is int), len(path))
            found.add(re.sub(r"[*?\[]", r"[\g<0>]", readable(path[:end])))
        return sorted(found)

    def built(self, names: Sequence[str], state: Any) -> dict[str, Any]:
        """What DCP calls so, of a state that :meth:`globs` have chosen."""
        found = {}
        for name in names:
            item = state
            for key in self.entries[name].path:
                item = item[key]
            found[name] = item
        return found


def _stored_in(value: Any) -> Iterator[Any]:
    """The stand-ins for leaves in a value that DCP does not flatten."""
    if isinstance(value, list):
        for each in value:
            yield from _stored_in(each)
    elif hasattr(value, "subclass"):
        yield value


# --- where steps are read from ---


class Source:
    """A job's session, or a directory.

    Attributes:
        ranks: how many ranks read together; None: each by itself.
    """

    ranks: int | None = None

    def __init__(self) -> None:
        self._stored: Stored | None = None

    def newest(self) -> int | None:
        """The step used for ``look(None)``; None if there is none."""
        raise NotImplementedError

    def look(self, step: int | None) -> Stored:
        """What a step holds, or the newest."""
        self._stored = None
        self._stored = Stored(self._step(step))
        return self._stored

    def bring(self, wanted: BoxesByName, compounds: Sequence[str], use: Use) -> None:
        """Fill the requested boxes of the step, once all of it was read and checked."""
        raise NotImplementedError

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise an error, instead of :meth:`bring`; on all ranks that read together."""
        raise error

    def _step(self, step: int | None) -> Step:
        raise NotImplementedError

    def _looked(self) -> Stored:
        if self._stored is None:
            raise CheckpointError("DCP reads before it has asked what there is", todo="load by dcp.load")
        return self._stored


class SessionSource(Source):
    """A job's session: every step that its levels have, from the cheapest source that is left. Calls are collective.

    What each rank had saved for itself it gets back; on another number of ranks, all get that of rank 0.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        super().__init__()
        self._checkpointer = checkpointer
        self.ranks = checkpointer.world_size

    def newest(self) -> int | None:
        """The newest step that can be recovered; None if there is no checkpoint."""
        return Step.newest(self._checkpointer)

    def _step(self, step: int | None) -> Step:
        found = Step.of_session(self._checkpointer, step)
        if found is None:
            raise RestoreError("there is no checkpoint", where=str(self._checkpointer.config.persistent_dir))
        return found

    def bring(self, wanted: BoxesByName, compounds: Sequence[str], use: Use) -> None:
        """As of :class:`Source`.

        What is no tensor to DCP comes first: a step is restored as a whole, or not at all, but these are two restores.
        """
        stored, checkpointer = self._looked(), self._checkpointer
        number = stored.step.number
        Step.agree(checkpointer, None)  # a rank that refuses raises here, on all of them
        made: dict[Any, Any] = {}
        if compounds:
            checkpointer.restore(made, number, "rank0", keys=stored.globs(compounds))
        Step.agree(checkpointer, _failure_of(use, stored.built(compounds, made)))
        live: dict[int, torch.Tensor] = {}
        later: list[tuple[torch.Tensor, WantedBox]] = []
        asked = [(stored.entries[name], parts) for name, parts in wanted.items()]
        # What a wanted leaf is a part of is restored, too, and as a whole.
        owners = {entry.value.owner for entry, _ in asked if entry.value.is_view}
        for entry, parts in asked:
            assert entry.leaf is not None
            live[entry.leaf] = _live_tensor(entry, parts, later, is_owner=entry.leaf in owners)
        for entry in stored.entries.values():
            if entry.leaf is not None and entry.leaf in owners - live.keys():
                live[entry.leaf] = torch.empty(entry.value.shape, dtype=entry.value.dtype)
        state = live_tree(stored, live)
        checkpointer.restore(state, number, "rank0", strict=False)
        for source, want in later:
            want.into.copy_(source)

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise it, and on the other ranks an error that quotes it."""
        Step.agree(self._checkpointer, error)
        raise AssertionError("an error of this rank is raised")


class DirectorySource(Source):
    """A persistent directory: each process reads by itself the chunks that it needs."""

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0, sign_key_file: KeyFiles = None) -> None:
        super().__init__()
        self._root, self._rank, self._keys = directory, rank, sign_key_file
        Step.check_keys(sign_key_file)

    def newest(self) -> int | None:
        """The newest committed step whose manifest is sound; None if there is no checkpoint."""
        return Step.newest(self._root, self._keys)

    def _step(self, step: int | None) -> Step:
        return Step.of_directory(self._root, step, rank=self._rank, sign_key_file=self._keys)

    def bring(self, wanted: BoxesByName, compounds: Sequence[str], use: Use) -> None:
        """As of :class:`Source`."""
        stored = self._looked()
        state = {}
        if compounds:
            where: Any = {"step": stored.step.number, "rank": stored.step.rank, "sign_key_file": self._keys}
            state = deeppart.load(self._root, keys=stored.globs(compounds), **where)
        use(stored.built(compounds, state))
        found: dict[int, list[tuple[Box, torch.Tensor]]] = {}
        for name, parts in wanted.items():
            leaf = stored.entries[name].leaf
            assert leaf is not None
            found.setdefault(leaf, []).extend((part.box, part.into) for part in parts)
        stored.step.read(found)


def _failure_of(use: Use, found: dict[str, Any]) -> DeeppartError | None:
    try:
        use(found)
    except Exception as error:  # of a class of the caller's: the other ranks wait
        return as_error(error, "what was restored cannot be handed to the planner")
    return None


# --- the live state that a session restores into ---


def _live_tensor(
    entry: Entry, parts: Sequence[WantedBox], later: list[tuple[torch.Tensor, WantedBox]], *, is_owner: bool
) -> torch.Tensor:
    """The item of the live state for a leaf."""
    shape, dtype = entry.value.shape, entry.value.dtype
    if len(parts) == 1 and parts[0].box.sizes == shape and parts[0].into.dtype == dtype:
        return parts[0].into
    if is_owner or entry.value.is_own or entry.value.owner is not None:  # is filled as a whole, or not at all
        all_of = torch.empty(shape, dtype=dtype)
        later += [(all_of[part.box.slices()], part) for part in parts]
        return all_of
    tensors = []
    for part in parts:
        tensor = part.into
        if tensor.dtype != dtype:
            tensor = torch.empty(part.box.sizes, dtype=dtype)
            later.append((tensor, part))
        tensors.append(tensor)
    return Pieces(shape, [part.box for part in parts], tensors)


def live_tree(stored: Stored, live: Mapping[int, Any]) -> dict[str, Any]:
    """A live state that has a place for some leaves of a saved one, and for nothing else.

    Places of lists that come before one that is wanted hold None.
    """
    found: dict[str, Any] | None = _live(stored.step.state, live)
    if found is not None:
        return found
    # One small thing: an empty state would want all, and one of other names is refused.
    paths = [entry.path for entry in stored.entries.values() if isinstance(entry.value, (int, float, str, type(None)))]
    named = (path for path in paths if all(type(key) is str for key in path))
    path = min(named, key=len, default=()) or min((entry.path for entry in stored.entries.values()), default=())[:1]
    state: Any = None
    for key in reversed(path):
        state = {key: state}
    return state or {}


def _live(item: Any, live: Mapping[int, Any]) -> Any:
    if isinstance(item, dict):
        children = ((key, _live(each, live)) for key, each in item.items())
        return {key: child for key, child in children if child is not None} or None
    if isinstance(item, list):
        found = [_live(each, live) for each in item]
        return None if all(child is None for child in found) else found
    leaf = getattr(item, "leaf", None)
    return None if leaf is None else live.get(leaf)


class Pieces(torch.Tensor):
    """Boxes of a tensor that this rank has, by themselves, as something that the library takes for a sharded tensor.

    It says what it has by torch's protocol for checkpoints.
    """

    _whole: tuple[int, ...]
    _boxes: tuple[Box, ...]
    _tensors: tuple[torch.Tensor, ...]

    def __new__(cls, shape: Sequence[int], boxes: Sequence[Box], tensors: Sequence[torch.Tensor]) -> Pieces:
        """A tensor without elements."""
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
