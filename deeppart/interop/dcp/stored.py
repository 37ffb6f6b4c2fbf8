"""deeppart's steps for DCP: their contents by DCP's names, read through a session or from a directory."""

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
    DeeppartError,
    RestoreError,
    StructureMismatchError,
    UnsupportedLeafError,
    as_error,
)
from deeppart.extension import Box, Step, readable
from deeppart.interop.dcp.metadata import Keys
from deeppart.interop.dcp.names import Item, index_by_name, walk
from deeppart.types import KeyFiles


class WantedBox(NamedTuple):
    """A requested box of a global tensor, and the tensor to fill."""

    box: Box
    tensor: torch.Tensor


#: Names -> requested boxes.
BoxesByName = Mapping[str, Sequence[WantedBox]]
#: Called with a state that has the compound items, before any tensor is filled.
OnCompounds = Callable[[Any], None]


# --- the contents of a step ---


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of a step.

    Attributes:
        item: as DCP flattens it.
        path: its keys in the saved state.
        value: a small value, or the placeholder for leaves of a :class:`deeppart.extension.Step`.
        is_compound: true for a container of leaves that is one item to DCP, such as a tuple of tensors.
    """

    item: Item
    path: tuple[Any, ...]
    value: Any
    is_compound: bool

    @property
    def leaf(self) -> int | None:
        """The leaf number of a tensor; None for other items."""
        return getattr(self.value, "leaf", None)

    def pick(self, state: Any) -> Any:
        """The item in a loaded state."""
        for key in self.path:
            state = state[key]
        return state


class Stored:
    """The contents of a step, as one rank sees it: :attr:`entries` by DCP's names."""

    def __init__(self, step: Step) -> None:
        self.step = step
        if not isinstance(step.state, dict):
            raise StructureMismatchError(
                "DCP can only load a state that is a dict",
                found=type(step.state).__name__,
                where=step.where,
                todo="use deeppart.load or Checkpointer.restore",
            )
        entries: dict[Keys, Entry] = {}
        for path, keys, value in walk(step.state):
            is_leaf = getattr(value, "leaf", None) is not None
            item = Item(path, value.dtype, value.shape) if is_leaf else Item(path)
            entries[path] = Entry(item, keys, value, not is_leaf and any(_placeholders(value)))
        named = index_by_name((entry.item for entry in entries.values()), step.where)
        self.entries: Mapping[str, Entry] = {name: entries[item.path] for name, item in named.items()}

    def check_loadable(self, name: str) -> None:
        """Reject a compound item that contains a tensor subclass, which only a live tensor could create."""
        entry = self.entries[name]
        subclass = next((each.subclass for each in _placeholders(entry.value) if each.subclass), None)
        if subclass is not None:
            raise UnsupportedLeafError(
                "dcp.load cannot create a tensor subclass in a container",
                found=f"a {subclass}",
                where=f"path {readable(entry.path)}",
                todo="restore it into a live tensor with Checkpointer.restore, or load its components with "
                "deeppart.load",
            )

    def globs(self, names: Sequence[str]) -> list[str]:
        """Globs that match exactly these items; lists are matched as a whole."""
        found = set()
        for name in names:
            path = self.entries[name].path
            end = next((end for end, key in enumerate(path) if type(key) is int), len(path))
            found.add(re.sub(r"[*?\[]", r"[\g<0>]", readable(path[:end])))
        return sorted(found)


def _placeholders(value: Any) -> Iterator[Any]:
    """The placeholders for leaves in an item."""
    if isinstance(value, list):
        for each in value:
            yield from _placeholders(each)
    elif hasattr(value, "subclass"):
        yield value


# --- sources of steps ---


class StoredSource:
    """A session or a directory.

    Attributes:
        ranks: number of ranks that read collectively; None if each reads independently.
    """

    ranks: int | None = None

    def newest(self) -> int | None:
        """The step of ``step(None)``; None if there is none."""
        raise NotImplementedError

    def step(self, number: int | None) -> Step:
        """A step, or the newest."""
        raise NotImplementedError

    def read(self, stored: Stored, wanted: BoxesByName, compounds: Sequence[str], on_compounds: OnCompounds) -> None:
        """Read and verify items of a step, then fill the tensors; ``compounds``: globs, the same on all ranks."""
        raise NotImplementedError

    def fail(self, error: DeeppartError) -> NoReturn:
        """Raise an error instead of calling :meth:`read`; for a session, on all ranks."""
        raise error


class SessionSource(StoredSource):
    """A job's session: steps of all levels, from the cheapest available source. Calls are collective.

    Each rank gets its own rank-local leaves; on another world size, all get rank 0's.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self.ranks = checkpointer.world_size

    def newest(self) -> int | None:
        """The newest recoverable step; None if there is no checkpoint."""
        return Step.newest(self._checkpointer)

    def step(self, number: int | None) -> Step:
        """The step that ``restore()`` would restore."""
        found = Step.of_session(self._checkpointer, number)
        if found is None:
            raise RestoreError("there is no checkpoint", where=str(self._checkpointer.config.persistent_dir))
        return found

    def read(self, stored: Stored, wanted: BoxesByName, compounds: Sequence[str], on_compounds: OnCompounds) -> None:
        """See :class:`StoredSource`. Compound items are restored first, so that a failure leaves tensors unchanged."""
        checkpointer, number = self._checkpointer, stored.step.number
        Step.agree(checkpointer, None)  # raises on all ranks if one has called fail()
        state: dict[Any, Any] = {}
        if compounds:
            checkpointer.restore(state, number, "rank0", keys=compounds)
        error = None
        try:
            on_compounds(state)
        except Exception as failure:  # of the caller's classes: the other ranks wait
            error = as_error(failure, "a restored value cannot be passed to the planner")
        Step.agree(checkpointer, error)
        live: dict[int, torch.Tensor] = {}
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        requested = [(stored.entries[name], boxes) for name, boxes in wanted.items()]
        # The owner of a requested view is restored, too, as a whole.
        owners = {entry.value.owner for entry, _ in requested if entry.value.is_view}
        for entry, boxes in requested:
            assert entry.leaf is not None
            live[entry.leaf] = _live_tensor(entry, boxes, copies, is_owner=entry.leaf in owners)
        for entry in stored.entries.values():
            if entry.leaf is not None and entry.leaf in owners - live.keys():
                live[entry.leaf] = torch.empty(entry.value.shape, dtype=entry.value.dtype)
        checkpointer.restore(live_state(stored, live), number, "rank0", strict=False)
        for source, target in copies:
            target.copy_(source)

    def fail(self, error: DeeppartError) -> NoReturn:
        """Raise the error here, and an error that quotes it on the other ranks."""
        Step.agree(self._checkpointer, error)
        raise AssertionError("agree() raises this rank's error")


class DirectorySource(StoredSource):
    """A persistent directory: each process reads the chunks that it needs."""

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0, sign_key_file: KeyFiles = None) -> None:
        self._root, self._rank, self._keys = directory, rank, sign_key_file
        Step.check_keys(sign_key_file)

    def newest(self) -> int | None:
        """The newest committed step with a valid manifest; None if there is no checkpoint."""
        return Step.newest(self._root, self._keys)

    def step(self, number: int | None) -> Step:
        """A committed step."""
        return Step.of_directory(self._root, number, rank=self._rank, sign_key_file=self._keys)

    def read(self, stored: Stored, wanted: BoxesByName, compounds: Sequence[str], on_compounds: OnCompounds) -> None:
        """See :class:`StoredSource`."""
        state = {}
        if compounds:
            options: Any = {"step": stored.step.number, "rank": stored.step.rank, "sign_key_file": self._keys}
            state = deeppart.load(self._root, keys=compounds, **options)
        on_compounds(state)
        found: dict[int, list[tuple[Box, torch.Tensor]]] = {}
        for name, boxes in wanted.items():
            leaf = stored.entries[name].leaf
            assert leaf is not None
            found.setdefault(leaf, []).extend(boxes)
        stored.step.read(found)


# --- the live state that a session restores into ---


def _live_tensor(
    entry: Entry, boxes: Sequence[WantedBox], copies: list[tuple[torch.Tensor, torch.Tensor]], *, is_owner: bool
) -> torch.Tensor:
    """The live tensor for a leaf; what must be copied after the restore is added to ``copies``."""
    shape, dtype = entry.value.shape, entry.value.dtype
    if len(boxes) == 1 and boxes[0].box.sizes == shape and boxes[0].tensor.dtype == dtype:
        return boxes[0].tensor
    if is_owner or entry.value.is_rank_local or entry.value.owner is not None:  # can only be restored as a whole
        whole = torch.empty(shape, dtype=dtype)
        copies += [(whole[wanted.box.slices()], wanted.tensor) for wanted in boxes]
        return whole
    tensors = []
    for wanted in boxes:
        tensor = wanted.tensor
        if tensor.dtype != dtype:
            tensor = torch.empty(wanted.box.sizes, dtype=dtype)
            copies.append((tensor, wanted.tensor))
        tensors.append(tensor)
    return LocalShards(shape, [wanted.box for wanted in boxes], tensors)


def live_state(stored: Stored, live: Mapping[int, Any]) -> dict[str, Any]:
    """A live state with some leaves of a step only; list elements before a requested one are None."""
    found: dict[str, Any] | None = _live(stored.step.state, live)
    if found is not None:
        return found
    # Request one small value: an empty state would request everything, and unknown names are rejected.
    paths = [entry.path for entry in stored.entries.values() if isinstance(entry.value, (int, float, str, type(None)))]
    in_dicts = (path for path in paths if all(type(key) is str for key in path))
    path = min(in_dicts, key=len, default=()) or min((entry.path for entry in stored.entries.values()), default=())[:1]
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


class LocalShards(torch.Tensor):
    """This rank's boxes of a global tensor: implements torch's checkpointing protocol for sharded tensors."""

    _global_shape: tuple[int, ...]
    _boxes: tuple[Box, ...]
    _tensors: tuple[torch.Tensor, ...]

    def __new__(cls, shape: Sequence[int], boxes: Sequence[Box], tensors: Sequence[torch.Tensor]) -> LocalShards:
        """An empty tensor with the shards as attributes."""
        made: LocalShards = torch.Tensor._make_subclass(cls, torch.empty(0, dtype=tensors[0].dtype))
        made._global_shape, made._boxes, made._tensors = tuple(shape), tuple(boxes), tuple(tensors)
        return made

    def __create_chunk_list__(self) -> list[Any]:
        return [SimpleNamespace(offsets=box.offset, sizes=box.sizes) for box in self._boxes]

    def __create_write_items__(self, fqn: str, item: Any) -> list[Any]:
        return [SimpleNamespace(tensor_data=SimpleNamespace(size=self._global_shape)) for _ in self._boxes]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        shard: torch.Tensor = self._tensors[index.index]
        return shard
