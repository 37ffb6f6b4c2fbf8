"""A storage writer for DCP: ``dcp.save`` and ``dcp.async_save`` make checkpoints of this library.

Most planners of DCP only say who writes what, which the library decides by itself. One that leaves things out, gives
them other names or makes others of them is asked as DCP asks it: what its plan has for this rank is this rank's part.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, Metadata, SavePlan, SavePlanner
from torch.distributed.checkpoint import StorageWriter as TorchStorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.futures import Future

from deeppart import Checkpointer, Pending
from deeppart.config import check_choice
from deeppart.errors import CheckpointError, ConfigError, UnsupportedLeafError
from deeppart.extension import Box
from deeppart.interop.dcp.metadata import Keys
from deeppart.interop.dcp.names import Item, Named, named, of_plan, step_of
from deeppart.interop.dcp.planner import BalancedSavePlanner
from deeppart.interop.dcp.stored import Pieces
from deeppart.interop.saving import or_refusal

_LEVELS = ("local", "partner", "parity", "persistent")
_PAUSE_S = 5e-3
#: Name prefix of the only item in the state with which a save continues after staging.
_MARK = "deeppart staged "
#: Staged states that wait for DCP's save. The writer does not learn of saves that fail before they reach it.
MOST_STAGED = 8
#: That of ``dcp.save`` and ``dcp.async_save``.
_MODULE = "torch.distributed.checkpoint.state_dict_saver"


class StorageWriter(TorchStorageWriter):
    """Saves what ``dcp.save`` and ``dcp.async_save`` are given as steps of a :class:`deeppart.Checkpointer`.

    It holds a session: one for all saves, closed at the end. Constructor and :meth:`close` are calls of all ranks. It
    is its own stager: ``dcp.async_save`` returns when this rank's share of the state is copied, 1/N of what N ranks
    have in common. ``checkpoint_id`` is a step: a number, a name that ends in one, or nothing for the next.

    Args:
        persistent_dir, local_dir: as of :class:`deeppart.Config`.
        process_group: of the ranks that save, the same as for ``dcp.save``; None for all.
        no_dist: this process saves alone, in a directory of its own (``dcp.save(no_dist=True)``).
        until: the level at which a save is done; None: every level that it goes to.
        settings: as of :class:`deeppart.Config`. ``replicated`` is ``"parts"`` if it is left out: ranks may have
            different keys, as with DCP.

    Attributes:
        checkpointer: the session.

    Raises:
        ConfigError: an impossible setting; ``every="auto"``, as each save is one that the caller wants.
        LaunchError, StorageError, DirectoryInUseError, RemoteRankError, PeerTimeoutError: at start-up.

    Example:
        >>> import torch, torch.distributed.checkpoint as dcp
        >>> from deeppart.interop.dcp import StorageReader, StorageWriter
        >>> state = {"model": {"weights": torch.ones(1000)}, "epoch": 3}
        >>> with StorageWriter("ckpt") as writer:
        ...     _ = dcp.save(state, checkpoint_id=100, storage_writer=writer)
        >>> live = {"model": {"weights": torch.zeros(1000)}, "epoch": 0}
        >>> dcp.load(live, storage_reader=StorageReader("ckpt"))
        >>> float(live["model"]["weights"].sum()), live["epoch"]
        (1000.0, 3)
    """

    #: Of DCP's protocol of stagers: once :meth:`stage` returns, nothing is left to wait for.
    _synchronize_after_execute = False

    def __init__(
        self,
        persistent_dir: str | os.PathLike[str],
        local_dir: str | os.PathLike[str] | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        no_dist: bool = False,
        until: str | None = None,
        **settings: Any,
    ) -> None:
        if until is not None:
            check_choice("until", until, _LEVELS)
        if settings.get("every") == "auto":
            raise ConfigError(
                'a writer for DCP cannot have every="auto"',
                expected="level -> number of saves",
                todo="call dcp.save when a checkpoint is due, or use deeppart.Checkpointer",
            )
        settings = {"replicated": "parts", **settings, "persistent_dir": os.fspath(persistent_dir)}
        if local_dir is not None:
            settings["local_dir"] = os.fspath(local_dir)
        self.checkpointer = Checkpointer(comm=_comm_of(process_group, no_dist), **settings)
        self._until, self._no_dist, self._group = until, no_dist, process_group
        self._staged = StagedSaves()
        self._last: int | None = None
        #: A save of DCP is made by one thread.
        self._saving = _Saving()

    # --- the session ---

    def close(self) -> None:
        """Finish what is in the background, report failures, give the directory back (collective)."""
        self.checkpointer.close()

    def __enter__(self) -> StorageWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # torch's CheckpointException is not an Exception, but must be handled like one.
        self.checkpointer.__exit__(kind, error, trace)

    def __reduce__(self) -> NoReturn:
        raise _other_process()

    # --- as a stager ---

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: nothing is left to wait for."""
        return self._synchronize_after_execute

    def stage(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Copy this rank's share of a state (collective); called by ``dcp.async_save``.

        Returns:
            The state with which the save continues.

        Raises:
            ConfigError: of ``dcp.async_save``: another process or no collectives, an impossible ``checkpoint_id``, or
                the default process group where that is gloo alone.
            StateError, StepExistsError, RemoteRankError, PeerTimeoutError: as of ``Checkpointer.checkpoint``.
        """
        call = calling("async_save") or Call(self._saving.given, process_group=self._group)
        self._saving.given = None
        if call.in_process:
            raise _other_process()
        self._check_call(call.use_collectives, no_dist=call.no_dist or self._no_dist)
        self._check_ranks(call.process_group)
        self._check_thread(call.process_group)
        step = self._step(call.checkpoint_id)

        def looked() -> Named:
            if decides_nothing(call.planner):
                return named(state_dict)
            return planned_part(call.planner, state_dict, self._group, alone=self._no_dist)

        return self._staged.put(self._begin(looked, step))

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    # --- as a writer, in the order in which DCP calls ---

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        try:
            step_of(checkpoint_id)
        except ConfigError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """The next save is of this step."""
        if checkpoint_id is not None:
            step_of(checkpoint_id)
        self._saving.given = checkpoint_id

    def storage_meta(self) -> None:
        """Nothing for planners. A save begins here."""
        saving = self._saving
        call = calling("save") or Call(process_group=self._group)
        saving.checkpoint_id, saving.given, saving.mark = saving.given, None, mark_among(call.keys)
        self._check_ranks(call.process_group)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See that DCP saves as this writer can."""
        self._check_call(kwargs.get("use_collectives", True))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Find out whether a staged state is saved."""
        self._saving.mark = self._saving.mark or mark_among(item.index.fqn for item in plan.items)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """See that all ranks of the session take part."""
        size = self.checkpointer.world_size
        if len(plans) != size:
            raise ConfigError(
                "DCP saves on other ranks than deeppart's writer was made for",
                expected=f"{size} ranks",
                found=f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""),
                todo="give both the same process_group; with no_dist=True, StorageWriter(..., no_dist=True)",
            )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save, or complete a staged save; returns when it is complete at the requested level."""
        saving = self._saving
        mark = saving.mark or mark_among(getattr(planner, "state_dict", None) or ())
        if mark is None:
            step = self._step(saving.checkpoint_id)

            def looked() -> Named:
                return state_of(planner) if decides_nothing(planner) else part_of(plan, planner)

            staged: Staged | None = self._begin(looked, step)
        else:
            staged = self._staged.take(mark)
        if staged is None:
            raise CheckpointError("a staged state was saved before", found=mark, todo="call dcp.async_save once for it")
        pending = staged.pending
        self._check_step(saving.checkpoint_id, pending.step)
        self._wait(pending, raises=mark is None)
        items = None if mark is None else staged.items
        written = WriteResult(MetadataIndex(""), pending.report.raw_bytes, items)
        future: Future[list[WriteResult]] = Future()
        future.set_result([written])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put into DCP's record what was saved, where DCP saw only what stood for it."""
        saved: list[tuple[Item, ...] | None] = [each.storage_data for of_rank in results for each in of_rank]
        if any(items is not None for items in saved):
            describe(metadata, {item.path: item for items in saved for item in items or ()}.values())

    # --- both ---

    def _begin(self, looked: Callable[[], Named], step: int) -> Staged:
        """Copy this rank's share (collective); what goes wrong here alone is raised on all ranks."""
        items: tuple[Item, ...] = ()

        def tree() -> Any:
            nonlocal items
            found = looked()
            items = found.items
            return found.tree

        pending = self.checkpointer.checkpoint(or_refusal(tree), step, force=step == self._last)
        self._last = step
        return Staged(pending, items)

    def _step(self, checkpoint_id: Any) -> int:
        return self.checkpointer.next_step() if checkpoint_id is None else step_of(checkpoint_id)

    def _wait(self, pending: Pending, *, raises: bool) -> None:
        """Until the save is complete where the caller wants it."""
        if not pending.levels:
            why = "on_busy='skip' dropped it" if pending.skipped else "it was due at no level"
            raise CheckpointError(f"step {pending.step} was not saved: {why}", todo="see `every` and `on_busy`")
        for level in [self._until] if self._until in pending.levels else sorted(pending.levels, key=_LEVELS.index):
            if raises:
                pending.wait(level)
                continue
            while not pending.settled(level):
                pending.done(level)  # advances exchanges where background threads cannot
                time.sleep(_PAUSE_S)
            report = pending.report.levels[level]
            if report.state == "failed":
                raise CheckpointError(
                    f"step {pending.step} is not complete at level {level}", found=report.error, where=f"level {level}"
                )

    def _check_call(self, use_collectives: bool, *, no_dist: bool | None = None) -> None:
        if not use_collectives:
            raise ConfigError(
                "deeppart's writer cannot save with use_collectives=False",
                expected="use_collectives=True",
                found="False: every rank would save for itself, and none would know when a checkpoint is complete",
                todo="leave it out: a save exchanges a few bytes",
            )
        if no_dist and self.checkpointer.world_size > 1:
            raise ConfigError(
                "no_dist=True, but deeppart's writer was made for several ranks",
                expected="StorageWriter(..., no_dist=True), with a directory for each process",
                found=f"a session of {self.checkpointer.world_size} ranks",
            )

    def _check_ranks(self, group: Any) -> None:
        """See that DCP saves on the ranks of the session: others would be waited for."""
        mine, given = _ranks_of(self._group), _ranks_of(group)
        if mine != given and not self._no_dist:
            raise ConfigError(
                "DCP saves on other ranks than deeppart's writer was made for",
                expected=f"ranks {mine}",
                found=f"ranks {given}",
                todo="give both the same process_group",
            )

    def _check_thread(self, group: Any) -> None:
        """See that the thread in which DCP saves has a group that the training loop does not use at the same time."""
        if self.checkpointer.world_size == 1 or _ranks_of(group) is None or group not in (None, dist.group.WORLD):
            return
        backends = dist.get_backend_config(dist.group.WORLD)
        if all(each.endswith(":gloo") for each in backends.split(",")):
            raise ConfigError(
                "dcp.async_save would use the training loop's process group in another thread: gloo hangs, or ends the "
                "process",
                expected="a process group for checkpoints alone",
                found=f"the default group, {backends}",
                todo='group = dist.new_group(backend="gloo"), once on all ranks, and '
                "dcp.async_save(..., process_group=group)",
            )

    def _check_step(self, checkpoint_id: Any, step: int) -> None:
        if checkpoint_id is not None and step_of(checkpoint_id) != step:
            raise ConfigError(
                "a state was staged for another step than it is saved for",
                expected=f"step {step}",
                found=f"checkpoint_id {checkpoint_id!r}",
                todo="call dcp.async_save itself, with the checkpoint_id; or leave the checkpoint_id out",
            )


class _Saving(threading.local):
    """What a thread knows of the save that it makes."""

    #: The ``checkpoint_id`` of the next save.
    given: Any = None
    #: The one of this save.
    checkpoint_id: Any = None
    #: Name of the item that represents a staged state.
    mark: str | None = None


def _ranks_of(group: dist.ProcessGroup | None) -> list[int] | None:
    """The ranks of a group, of all for None; None if there are no groups, or this rank is not in it."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    found = dist.group.WORLD if group is None else group
    return dist.get_process_group_ranks(found) if isinstance(found, dist.ProcessGroup) else None


def _comm_of(group: dist.ProcessGroup | None, no_dist: bool) -> Any:
    if no_dist:
        return "self"
    return dist.group.WORLD if group is None and dist.is_available() and dist.is_initialized() else group


def _other_process() -> ConfigError:
    return ConfigError(
        "deeppart's writer cannot save in another process",
        expected="AsyncCheckpointerType.THREAD",
        found="AsyncCheckpointerType.PROCESS: it has the session's connections, threads and directory in this one",
        todo="leave async_checkpointer_type out: the share is copied first, and threads write it in the background",
    )


# --- planners that decide what is saved ---


def decides_nothing(planner: SavePlanner | None) -> bool:
    """True if a planner saves all of a state, as it is: DCP's own, and the one of this library."""
    if planner is None:
        return True
    if type(planner) not in (DefaultSavePlanner, BalancedSavePlanner):
        return False
    if not planner.flatten_state_dict:  # type: ignore[attr-defined]
        raise ConfigError(
            "a planner would pickle inner dicts whole",
            expected="flatten_state_dict=True",
            found=f"{type(planner).__name__}(flatten_state_dict=False)",
            todo="leave it out: the state is nested again when it is loaded",
        )
    return True


def state_of(planner: SavePlanner) -> Named:
    """The state that a planner which :func:`decides_nothing` was given."""
    return of_plan(planner.state_dict, planner.mappings)  # type: ignore[attr-defined]


def planned_part(planner: SavePlanner, state: Mapping[str, Any], group: Any, *, alone: bool) -> Named:
    """This rank's part of a state, planned as ``dcp.save`` would (collective)."""
    ranks = _DistWrapper(group, not alone and dist.is_available() and dist.is_initialized(), 0)

    def local() -> SavePlan:
        planner.set_up_planner(dict(state), None, ranks.is_coordinator)
        return planner.create_local_plan()

    try:
        plan = ranks.reduce_scatter("plan", local, lambda plans: planner.create_global_plan(plans)[0])
    except CheckpointException as error:  # it is no Exception
        failed = {rank: f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
        raise CheckpointError(
            "the planner that dcp.async_save was given cannot plan the state",
            found="; ".join(f"rank {rank}: {text}" for rank, text in failed.items()),
            todo="see what it reports; nothing was saved",
        ) from error
    return part_of(planner.finish_plan(plan), planner)


def part_of(plan: SavePlan, planner: SavePlanner) -> Named:
    """What a plan has for this rank."""
    paths: Mapping[str, Keys] = getattr(planner, "mappings", None) or {}
    tensors: dict[str, tuple[tuple[int, ...], list[Box], list[torch.Tensor]]] = {}
    flat: dict[str, Any] = {}
    for item in plan.items:
        name = item.index.fqn
        if item.type is WriteItemType.BYTE_IO or item.tensor_data is None:
            flat[name] = _value(item, planner)
            continue
        piece = planner.resolve_data(item)
        if not isinstance(piece, torch.Tensor):
            raise UnsupportedLeafError(
                "a planner gives something else than a tensor", found=type(piece).__name__, where=f"item {name}"
            )
        chunk = item.tensor_data.chunk
        shape, boxes, pieces = tensors.setdefault(name, (tuple(item.tensor_data.size), [], []))
        boxes.append(Box(tuple(chunk.offsets), tuple(chunk.sizes)))
        pieces.append(piece.detach())
    for name, (shape, boxes, pieces) in tensors.items():
        flat[name] = pieces[0] if boxes == [Box.whole(shape)] else Pieces(shape, boxes, pieces)
    found = of_plan(flat, {name: _texts(paths.get(name, (name,))) for name in flat})
    items = [
        Item(item.path, tensors[name][2][0].dtype, tensors[name][0])
        if (name := item.name) in tensors
        else Item(item.path)
        for item in found.items
    ]
    return Named(found.tree, tuple(items))


def _texts(path: Keys) -> Keys:
    """Of lists, each rank may have some places: they are dicts here."""
    return tuple(map(str, path))


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """A value that is no tensor: what the planner would pickle."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is not None:
        return look_up(item.index)
    data: Any = planner.resolve_data(item)
    try:
        data.seek(0)
        return torch.load(data, weights_only=True)
    except Exception as error:  # of the planner's own
        raise UnsupportedLeafError(
            "a planner gives a value only as a pickle, which is not stored",
            found=f"{type(error).__name__}: {error}".partition("\n")[0],
            where=f"item {item.index.fqn}",
            todo="give the planner a method lookup_object(index), as DefaultSavePlanner has",
        ) from error


# --- what a save was called with ---
#
# ``stage()`` is given the state alone; newer releases of torch (2.13 is one, 2.4 is not) tell the writer of the
# ``checkpoint_id`` only afterwards, in another thread. But the step and the planner must be known before a share is
# copied. They are arguments of a public function by their public names; so they are read there, and compared when DCP
# says them. A writer sees what a planner makes of a state, never the state: whether it is a staged one must not
# depend on what a planner of the caller leaves out or renames.


class Call(NamedTuple):
    """A call of ``dcp.save`` or ``dcp.async_save``.

    ``in_process``: the save is to be made by another process. ``keys``: of the outermost dict of the state.
    """

    checkpoint_id: Any = None
    planner: Any = None
    in_process: bool = False
    no_dist: bool = False
    use_collectives: bool = True
    process_group: Any = None
    keys: tuple[Any, ...] = ()


def calling(function: str) -> Call | None:
    """The call of a DCP function within which this runs; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name, frame.f_globals.get("__name__")) != (function, _MODULE):
        frame = frame.f_back
    if frame is None:
        return None
    found = frame.f_locals
    state = found.get("state_dict")
    return Call(
        found.get("checkpoint_id"),
        found.get("planner"),
        getattr(found.get("async_checkpointer_type"), "value", None) == "process",
        bool(found.get("no_dist", False)),
        bool(found.get("use_collectives", True)),
        found.get("process_group"),
        tuple(state) if isinstance(state, Mapping) else (),
    )


# --- what a rank keeps between the staging of a state and its save ---


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that is in staging memory, and what is in it on this rank."""

    pending: Pending
    items: tuple[Item, ...]


class StagedSaves:
    """Those of which DCP's own save is still to come. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._staged: dict[int, Staged] = {}  # guarded by the lock

    def put(self, staged: Staged) -> dict[str, None]:
        """Keep a staged state; returns the state that represents it."""
        with self._lock:
            number = next(self._numbers)
            self._staged[number] = staged
            for old in sorted(self._staged)[:-MOST_STAGED]:
                del self._staged[old]
        return {f"{_MARK}{number}": None}

    def take(self, name: str) -> Staged | None:
        """The staged state that an item represents, once. Concurrent saves of DCP arrive in any order."""
        with self._lock:
            return self._staged.pop(int(name.removeprefix(_MARK)), None)


def mark_among(names: Iterable[object]) -> str | None:
    """The name of an item that represents a staged state; None if there is none."""
    return next((name for name in names if isinstance(name, str) and name.startswith(_MARK)), None)


# --- DCP's record of a checkpoint ---


def describe(metadata: Metadata, items: Iterable[Item]) -> None:
    """Make a record that of these items, in place: each tensor is one chunk, as any box of it can be read."""
    found = {item.name: item for item in items}
    metadata.state_dict_metadata = {name: _described(item) for name, item in found.items()}
    metadata.planner_data = {name: item.path for name, item in found.items()}


def _described(item: Item) -> TensorStorageMetadata | BytesStorageMetadata:
    if item.dtype is None or item.shape is None:
        return BytesStorageMetadata()
    size = torch.Size(item.shape)
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(dtype=item.dtype), size, [whole])
