"""A storage reader for DCP: ``dcp.load`` reads checkpoints of this library."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlan, LoadPlanner, Metadata
from torch.distributed.checkpoint import StorageReader as TorchStorageReader
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from deeppart import Checkpointer
from deeppart.errors import (
    ConfigError,
    DeeppartError,
    FreedMemoryError,
    LeafMismatchError,
    StructureMismatchError,
    as_error,
)
from deeppart.extension import Box
from deeppart.interop.dcp.names import is_dense, step_of
from deeppart.interop.dcp.storage_writer import StorageWriter, describe
from deeppart.interop.dcp.stored import DirectorySource, SessionSource, Source, Stored, WantedBox
from deeppart.types import KeyFiles


class StorageReader(TorchStorageReader):
    """Loads steps of a :class:`deeppart.Checkpointer`, or of :class:`StorageWriter`, by ``dcp.load``.

    DCP's names are the keys of a path, joined by dots, so what ``checkpoint({"model": model})`` has saved is loaded as
    ``{"model": model}``, too. Of a directory, only the chunks that hold what is asked for are read. Digests are
    checked. Values are data: what DCP unpickles was pickled here, in memory.

    ``checkpoint_id`` is a step, as for the writer; without one, the newest is loaded.

    Args:
        source: a writer, or a :class:`deeppart.Checkpointer`: its session reads every level, each byte once for all
            ranks together, and all of them call ``dcp.load``. Or a persistent directory: any number of processes read
            it, each for itself; also with ``no_dist``.
        rank: of a directory: whose values to take of what each rank saved for itself.
        sign_key_file: of a directory: as of :func:`deeppart.load`. A session has its own.

    Raises:
        ConfigError: ``source`` is something else, or a key file is not used.

    Example:
        >>> import deeppart, torch, torch.distributed.checkpoint as dcp
        >>> from deeppart.interop.dcp import StorageReader
        >>> model = torch.nn.Linear(2, 1)
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     _ = checkpointer.checkpoint({"model": model, "epoch": 3}, step=100)
        >>> live = {"model": torch.nn.Linear(2, 1)}
        >>> dcp.load(live, checkpoint_id=100, storage_reader=StorageReader("ckpt"))
        >>> bool((live["model"].weight == model.weight).all())
        True
    """

    def __init__(
        self,
        source: StorageWriter | Checkpointer | str | os.PathLike[str],
        *,
        rank: int = 0,
        sign_key_file: KeyFiles = None,
    ) -> None:
        self._source: Source
        if isinstance(source, StorageWriter):
            self._source = SessionSource(source.checkpointer)
        elif isinstance(source, Checkpointer):
            self._source = SessionSource(source)
        elif isinstance(source, (str, os.PathLike)):
            self._source = DirectorySource(source, rank, sign_key_file)
        else:
            raise ConfigError(
                "impossible source for deeppart's reader of DCP",
                expected="a StorageWriter, a Checkpointer, or a persistent directory",
                found=type(source).__name__,
            )
        self._step: int | None = None
        self._stored: Stored | None = None
        self._failure: DeeppartError | None = None

    def newest(self) -> int | None:
        """The step that a load without ``checkpoint_id`` takes; None if there is no checkpoint.

        Of a session, a call of all ranks.

        Raises:
            RestoreError: there are checkpoints, but none can be loaded. StorageError, RemoteRankError,
                PeerTimeoutError: it cannot be found out.
        """
        return self._source.newest()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """The next load is of this step."""
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What there is. An error is kept for :meth:`set_up_storage_reader`: here, DCP would make a text of it."""
        self._stored, self._failure = None, None
        step, self._step = self._step, None
        try:
            self._stored = self._source.look(step)
        except Exception as error:  # of any type: DCP sends it to the other ranks
            self._failure = as_error(error, "a checkpoint cannot be loaded")
            return Metadata({})
        found = Metadata({})
        describe(found, [entry.item for entry in self._stored.entries.values()])
        return found

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Nothing to set up."""
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Name the items that all ranks must read together."""
        names = sorted(item.storage_index.fqn for item in plan.items if item.type is LoadItemType.BYTE_IO)
        compounds = [name for name in names if self._known(name).is_compound]
        for name in compounds:
            assert self._stored is not None
            self._stored.refuse_to_build(name)
        return plan if self._source.ranks is None else replace(plan, storage_data=compounds)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See that all ranks of the session take part, and tell them what all of them read."""
        if self._source.ranks is None:
            return plans
        if len(plans) != self._source.ranks:
            raise ConfigError(
                "DCP loads on other ranks than deeppart's reader was made for",
                expected=f"{self._source.ranks} ranks, those of the session",
                found=f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""),
                todo="give both the same process_group; or read the persistent directory: StorageReader(DIRECTORY)",
            )
        everywhere = sorted({name for plan in plans for name in plan.storage_data or ()})
        return [replace(plan, storage_data=everywhere) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan asks for, check it, and put it into the planner's tensors."""
        tensors = [item for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        together = self._source.ranks is not None
        wanted: dict[str, list[WantedBox]] = {}
        pickled: list[tuple[ReadItem, io.BytesIO]] = []

        def pickle(brought: Mapping[str, Any]) -> None:
            """What may fail of a class of the caller's, before anything is changed."""
            for item in values:
                name = item.storage_index.fqn
                pickled.append((item, _pickled(brought[name] if name in brought else self._known(name).value)))

        try:
            found = destinations(planner, tensors, lambda name: self._known(name).item.dtype, may_refuse=together)
            for each in found:
                wanted.setdefault(each.item.storage_index.fqn, []).append(each.wanted)
            mine = [item.storage_index.fqn for item in values if self._known(item.storage_index.fqn).is_compound]
            compounds = plan.storage_data if together else mine
            if compounds is None or not set(mine) <= set(compounds):
                raise StructureMismatchError(
                    "a planner has lost what deeppart's reader put into its plan",
                    expected="a LoadPlan with the storage_data that it had",
                    todo="make plans by dataclasses.replace(plan, ...)",
                )
        except Exception as error:  # of the planner: other ranks may read together with this one
            self._source.refuse(as_error(error, "the planner does not say where to put a tensor"))
        with torch.no_grad():
            self._source.bring(wanted, compounds, pickle)
        hand_over(planner, found)
        for item, data in pickled:
            planner.load_bytes(item, data)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _known(self, name: str) -> Any:
        entry = None if self._stored is None else self._stored.entries.get(name)
        if entry is None:
            raise StructureMismatchError(
                "a planner asks for something that the checkpoint lacks",
                found=name,
                todo="see metadata in set_up_planner",
            )
        return entry


def _pickled(value: Any) -> io.BytesIO:
    """A value as planners expect it."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


# --- where a planner puts what it loads ---
#
# DCP's own reader goes from item to item: it asks the planner for a tensor, fills it, and gives it back. Here, all are
# asked for first, before anything is changed. A planner may give one buffer for every item, or state the same memory
# under several names; what shares memory is brought beside, and handed over item by item.


class Destination(NamedTuple):
    """One item of a plan, the planner's tensor for it, and what is filled: the same tensor, or one beside it."""

    item: ReadItem
    given: torch.Tensor
    memory: torch.Tensor
    is_beside: bool

    @property
    def wanted(self) -> WantedBox:
        """The box of the stored tensor that is read, and what it is put into."""
        first = self.item.storage_index.offset or torch.Size([0] * len(self.item.storage_offsets))
        offset = tuple(a + b for a, b in zip(first, self.item.storage_offsets, strict=True))
        return WantedBox(Box(offset, tuple(self.item.lengths)), self.memory)


def destinations(
    planner: LoadPlanner, items: Sequence[ReadItem], dtype_of: Callable[[str], torch.dtype], *, may_refuse: bool
) -> list[Destination]:
    """Ask a planner where it puts the tensors of a plan."""
    given = [planner.resolve_tensor(item) for item in items]
    for item, tensor in zip(items, given, strict=True):
        _check(item, tensor, dtype_of(item.storage_index.fqn))
    # Those of a planner that copies them on are its own business, not the state.
    beside = set[int]() if may_refuse and not _commits(planner) else _sharing_memory(given)
    found = []
    for place, (item, tensor) in enumerate(zip(items, given, strict=True)):
        memory, is_beside = tensor.detach(), place in beside or not is_dense(tensor)
        if is_beside:
            memory = torch.empty(tuple(item.lengths), dtype=dtype_of(item.storage_index.fqn))
        found.append(Destination(item, tensor, memory, is_beside))
    return found


def hand_over(planner: LoadPlanner, filled: Sequence[Destination]) -> None:
    """Give a planner its tensors back, with what was read in them."""
    with torch.no_grad():
        for each in filled:
            if each.is_beside:
                each.given.detach().copy_(each.memory)
            planner.commit_tensor(each.item, each.given)


def _commits(planner: LoadPlanner) -> bool:
    """True if a planner processes tensors after they were filled."""
    commit: Any = getattr(planner.commit_tensor, "__func__", planner.commit_tensor)
    return commit is not DefaultLoadPlanner.commit_tensor


def _check(item: ReadItem, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    name, sizes = item.storage_index.fqn, tuple(item.lengths)
    if tuple(tensor.shape) != sizes:
        raise LeafMismatchError(
            f"a tensor of the planner has another shape than what it asks for: {name}",
            expected=f"shape {list(sizes)}",
            found=f"shape {list(tensor.shape)}",
        )
    if not is_dense(tensor):  # how it takes a plain one is its own business
        try:
            with torch.no_grad():
                torch.empty_like(tensor.detach()).copy_(torch.zeros(sizes, dtype=dtype))
        except Exception as error:  # of whatever kind
            raise _unwritable(name, f"a {type(tensor).__name__}: {type(error).__name__}: {error}") from error
        return
    if any(length > 1 and not stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise _unwritable(name, f"elements that share memory, of strides {list(tensor.stride())}")
    if tensor.is_inference() and tensor.dtype != dtype and not torch.is_inference_mode_enabled():
        raise _unwritable(name, "an inference tensor of another dtype than the stored one")
    storage = tensor.untyped_storage()
    if tensor.numel() and (end := _extent(tensor)[1] - storage.data_ptr()) > storage.nbytes():
        raise FreedMemoryError(
            f"a tensor of the planner has lost its memory: {name}",
            expected=f"a storage of {end} bytes",
            found=f"{storage.nbytes()} bytes",
            todo="load before storages are freed, as FSDP does it between steps",
        )


def _unwritable(name: str, found: str) -> LeafMismatchError:
    return LeafMismatchError(
        f"a tensor of the planner cannot be filled: {name}",
        expected="a tensor whose elements have memory of their own, and that takes them by copy_()",
        found=found,
        todo="put another tensor in its place in the state that is given to dcp.load",
    )


def _sharing_memory(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Indices of tensors that may share memory with another; without those that are not plain tensors.

    By the first and the last byte: a planner may have one buffer for thousands of items.
    """
    ranges: list[tuple[str, int, int, int]] = []
    for place, tensor in enumerate(tensors):
        if is_dense(tensor) and tensor.numel():
            ranges.append((str(tensor.device), *_extent(tensor), place))
    ranges.sort()
    found: set[int] = set()
    reach: tuple[str, int, int] | None = None  # device, end and place of what reaches furthest
    for device, first, end, place in ranges:
        if reach is not None and reach[0] == device and first < reach[1]:
            found |= {place, reach[2]}
        if reach is None or reach[0] != device or end > reach[1]:
            reach = device, end, place
    return found


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of its first byte, and after its last one."""
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
