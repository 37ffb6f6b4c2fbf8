"""A storage reader for DCP: ``dcp.load`` loads deeppart's checkpoints."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
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
from deeppart.interop.dcp.stored import DirectorySource, SessionSource, Stored, StoredSource, WantedBox
from deeppart.types import KeyFiles


class StorageReader(TorchStorageReader):
    """Loads steps of a :class:`deeppart.Checkpointer` or :class:`StorageWriter` with ``dcp.load``.

    DCP's names are paths joined by dots, so a state saved as ``checkpoint({"model": model})`` is loaded as
    ``{"model": model}``, too. From a directory, only the required chunks are read. Digests are verified. No pickle is
    stored: values are decoded from data, and pickled in memory for DCP.

    ``checkpoint_id`` is a step, as for the writer; without one, the newest step is loaded.

    Args:
        source: a writer or :class:`deeppart.Checkpointer`, whose session reads from all levels, each byte once for all
            ranks; all ranks call ``dcp.load``. Or a persistent directory, which any number of processes can read
            independently, also with ``no_dist``.
        rank: for a directory: the rank whose rank-local leaves to load.
        sign_key_file: for a directory: as for :func:`deeppart.load`. A session has its own.

    Raises:
        ConfigError: ``source`` or a key file is invalid.

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
        self._source: StoredSource
        if isinstance(source, StorageWriter):
            self._source = SessionSource(source.checkpointer)
        elif isinstance(source, Checkpointer):
            self._source = SessionSource(source)
        elif isinstance(source, (str, os.PathLike)):
            self._source = DirectorySource(source, rank, sign_key_file)
        else:
            raise ConfigError(
                "invalid source for deeppart's StorageReader",
                expected="a StorageWriter, a Checkpointer, or a persistent directory",
                found=type(source).__name__,
            )
        self._step: int | None = None
        self._stored: Stored | None = None
        self._failure: DeeppartError | None = None

    def newest(self) -> int | None:
        """The step that a load without ``checkpoint_id`` would load; None if there is none. Collective for a session.

        Raises:
            RestoreError: there are checkpoints, but none can be loaded. StorageError, RemoteRankError,
                PeerTimeoutError: the steps cannot be read.
        """
        return self._source.newest()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Set the step of the next load."""
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Describe the step. :meth:`set_up_storage_reader` raises errors: here, DCP would keep only their text."""
        self._stored, self._failure = None, None
        step, self._step = self._step, None
        try:
            self._stored = Stored(self._source.step(step))
        except Exception as error:  # DCP raises it on all ranks
            self._failure = as_error(error, "a checkpoint cannot be loaded")
            return Metadata({})
        found = Metadata({})
        describe(found, [entry.item for entry in self._stored.entries.values()])
        return found

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Raise the error of :meth:`read_metadata`."""
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Pass on globs of compound items, which the ranks of a session must read collectively."""
        return replace(plan, storage_data=self._compounds(plan))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks of the session take part, and merge their globs of compound items."""
        if self._source.ranks is None:
            return plans
        if len(plans) != self._source.ranks:
            raise ConfigError(
                "the ranks of dcp.load are not those of the session of deeppart's StorageReader",
                expected=f"{self._source.ranks} ranks",
                found=f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""),
                todo="use the same process_group; or read the persistent directory: StorageReader(DIRECTORY)",
            )
        compounds = sorted({glob for plan in plans for glob in plan.storage_data or ()})
        return [replace(plan, storage_data=compounds) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read and verify the items of a plan, and pass them to the planner."""
        tensors = [item for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        collective = self._source.ranks is not None
        wanted: dict[str, list[WantedBox]] = {}
        pickled: list[tuple[ReadItem, io.BytesIO]] = []

        def pickle(state: Any) -> None:  # may fail, so it is done before any tensor is modified
            for item in values:
                entry = self._entry(item.storage_index.fqn)
                pickled.append((item, _pickled(entry.pick(state) if entry.is_compound else entry.value)))

        try:
            found = destinations(planner, tensors, lambda name: self._entry(name).item.dtype, collective=collective)
            for each in found:
                wanted.setdefault(each.item.storage_index.fqn, []).append(each.wanted)
            mine = self._compounds(plan)
            compounds = plan.storage_data if collective else mine
            if compounds is None or not set(mine) <= set(compounds):
                raise StructureMismatchError(
                    "a planner has dropped the storage_data of its LoadPlan",
                    expected="a LoadPlan with unchanged storage_data",
                    todo="create plans with dataclasses.replace(plan, ...)",
                )
        except Exception as error:  # of the planner: with a session, the other ranks wait
            self._source.fail(as_error(error, "the planner does not provide a tensor to load into"))
        assert self._stored is not None, "read_metadata() comes first"
        with torch.no_grad():
            self._source.read(self._stored, wanted, compounds, pickle)
        commit_tensors(planner, found)
        for item, data in pickled:
            planner.load_bytes(item, data)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _compounds(self, plan: LoadPlan) -> list[str]:
        """Globs of the compound items in a plan."""
        names = [item.storage_index.fqn for item in plan.items if item.type is LoadItemType.BYTE_IO]
        compounds = [name for name in names if self._entry(name).is_compound]
        if self._stored is None or not compounds:
            return []
        for name in compounds:
            self._stored.check_loadable(name)
        return self._stored.globs(compounds)

    def _entry(self, name: str) -> Any:
        entry = None if self._stored is None else self._stored.entries.get(name)
        if entry is None:
            raise StructureMismatchError(
                "a planner requests an item that is not in the checkpoint",
                found=name,
                todo="see the metadata that set_up_planner gets",
            )
        return entry


def _pickled(value: Any) -> io.BytesIO:
    """A value in the form that planners expect."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


# --- the tensors that a planner loads into ---
#
# DCP's own reader resolves, fills and commits one item after the other. Here all tensors are resolved before anything
# is modified. A planner may return one buffer for every item, or the same memory under several names: tensors that
# share memory are read into temporary ones, and copied item by item.


class Destination(NamedTuple):
    """An item of a plan, the planner's tensor for it, and the tensor to fill: the same one, or a temporary one."""

    item: ReadItem
    resolved: torch.Tensor
    filled: torch.Tensor
    is_temporary: bool

    @property
    def wanted(self) -> WantedBox:
        """The box of the stored tensor to read, and the tensor to fill."""
        first = self.item.storage_index.offset or torch.Size([0] * len(self.item.storage_offsets))
        offset = tuple(a + b for a, b in zip(first, self.item.storage_offsets, strict=True))
        return WantedBox(Box(offset, tuple(self.item.lengths)), self.filled)


def destinations(
    planner: LoadPlanner, items: Sequence[ReadItem], dtype_of: Callable[[str], torch.dtype], *, collective: bool
) -> list[Destination]:
    """Resolve the tensors of a plan."""
    resolved = [planner.resolve_tensor(item) for item in items]
    for item, tensor in zip(items, resolved, strict=True):
        _check(item, tensor, dtype_of(item.storage_index.fqn))
    # A session's restore itself rejects a state whose leaves share memory wrongly. But the tensors of a planner that
    # overrides commit_tensor may be buffers, which are not the state.
    commit: Any = getattr(planner.commit_tensor, "__func__", planner.commit_tensor)
    uses_buffers = commit is not DefaultLoadPlanner.commit_tensor
    sharing = set[int]() if collective and not uses_buffers else _sharing_memory(resolved)
    found = []
    for index, (item, tensor) in enumerate(zip(items, resolved, strict=True)):
        filled, is_temporary = tensor.detach(), index in sharing or not is_dense(tensor)
        if is_temporary:
            filled = torch.empty(tuple(item.lengths), dtype=dtype_of(item.storage_index.fqn))
        found.append(Destination(item, tensor, filled, is_temporary))
    return found


def commit_tensors(planner: LoadPlanner, loaded: Sequence[Destination]) -> None:
    """Commit the loaded tensors to a planner."""
    with torch.no_grad():
        for each in loaded:
            if each.is_temporary:
                each.resolved.detach().copy_(each.filled)
            planner.commit_tensor(each.item, each.resolved)


def _check(item: ReadItem, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    name, sizes = item.storage_index.fqn, tuple(item.lengths)
    if tuple(tensor.shape) != sizes:
        raise LeafMismatchError(
            f"the shape of the planner's tensor differs from that of its request: {name}",
            expected=f"shape {list(sizes)}",
            found=f"shape {list(tensor.shape)}",
        )
    if not is_dense(tensor):  # it must support copy_() from a plain tensor
        try:
            with torch.no_grad():
                torch.empty_like(tensor.detach()).copy_(torch.zeros(sizes, dtype=dtype))
        except Exception as error:  # a subclass can raise anything
            raise _unwritable(name, f"a {type(tensor).__name__}: {type(error).__name__}: {error}") from error
        return
    if any(length > 1 and not stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise _unwritable(name, f"elements that share memory, with strides {list(tensor.stride())}")
    if tensor.is_inference() and tensor.dtype != dtype and not torch.is_inference_mode_enabled():
        raise _unwritable(name, "an inference tensor of another dtype than the stored one")
    storage = tensor.untyped_storage()
    if tensor.numel() and (end := _extent(tensor)[1] - storage.data_ptr()) > storage.nbytes():
        raise FreedMemoryError(
            f"the storage of the planner's tensor has been freed: {name}",
            expected=f"a storage of {end} bytes",
            found=f"{storage.nbytes()} bytes",
            todo="load before storages are freed, as FSDP does between steps",
        )


def _unwritable(name: str, found: str) -> LeafMismatchError:
    return LeafMismatchError(
        f"a tensor of the planner cannot be filled: {name}",
        expected="a tensor whose elements do not overlap, and that supports copy_()",
        found=found,
        todo="use another tensor in the state that is passed to dcp.load",
    )


def _sharing_memory(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Indices of plain tensors whose address range overlaps another one's."""
    ranges: list[tuple[str, int, int, int]] = []
    for index, tensor in enumerate(tensors):
        if is_dense(tensor) and tensor.numel():
            ranges.append((str(tensor.device), *_extent(tensor), index))
    ranges.sort()
    found: set[int] = set()
    furthest: tuple[str, int, int] | None = None  # device, end and index of the range that reaches furthest
    for device, first, end, index in ranges:
        if furthest is not None and furthest[0] == device and first < furthest[1]:
            found |= {index, furthest[2]}
        if furthest is None or furthest[0] != device or end > furthest[1]:
            furthest = device, end, index
    return found


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The address range of a tensor's elements."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
