"""A storage writer for DCP: ``dcp.save`` and ``dcp.async_save`` make deeppart's checkpoints.

DCP's own planners only decide which rank writes what, and are ignored: deeppart partitions the state itself. A custom
planner may also omit, rename or transform items, so its plan is executed as DCP would, and determines each rank's
state.
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
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.futures import Future

from deeppart import Checkpointer, Pending
from deeppart.config import check_choice
from deeppart.errors import CheckpointError, ConfigError, UnsupportedLeafError
from deeppart.extension import Box
from deeppart.interop.dcp.metadata import Keys
from deeppart.interop.dcp.names import DcpState, Item, dcp_state, step_of, unflatten
from deeppart.interop.dcp.planner import BalancedSavePlanner
from deeppart.interop.dcp.stored import LocalShards
from deeppart.interop.dcp.writing import item_metadata
from deeppart.interop.saving import state_or_error

_LEVELS = ("local", "partner", "parity", "persistent")
_POLL_S = 5e-3
#: Prefix of a token: the name of the only item of the state that stands for a staged one.
_TOKEN = "deeppart staged "
#: Limit of staged saves that DCP has not continued. The writer is not told of saves that fail before they reach it.
MAX_STAGED = 8
#: The module of ``dcp.save`` and ``dcp.async_save``.
_MODULE = "torch.distributed.checkpoint.state_dict_saver"


class StorageWriter(TorchStorageWriter):
    """Saves the states of ``dcp.save`` and ``dcp.async_save`` as steps of a :class:`deeppart.Checkpointer`.

    It holds one session for all saves, which :meth:`close` ends. The constructor and :meth:`close` are collective. It
    is also the stager: ``dcp.async_save`` returns once this rank's share of the state has been copied, 1/N of what N
    ranks replicate. ``checkpoint_id`` is a step: a number, a name that ends in one, or None for the next step.

    Args:
        persistent_dir, local_dir: as for :class:`deeppart.Config`.
        process_group: the ranks that save, the same as for ``dcp.save``; None for all.
        no_dist: this process saves alone, to its own directory (``dcp.save(no_dist=True)``).
        until: the level at which a save is complete; None for all levels that it goes to.
        settings: as for :class:`deeppart.Config`. ``replicated`` defaults to ``"parts"``: ranks may have different
            keys, as with DCP.

    Attributes:
        checkpointer: the Checkpointer.

    Raises:
        ConfigError: a setting is invalid, or ``every="auto"``, as DCP decides when to save.
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

    #: DCP's stager protocol: :meth:`stage` is synchronous.
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
                'deeppart\'s StorageWriter does not support every="auto"',
                expected="level -> number of saves",
                todo="call dcp.save whenever a checkpoint is due, or use deeppart.Checkpointer",
            )
        settings = {"replicated": "parts", **settings, "persistent_dir": os.fspath(persistent_dir)}
        if local_dir is not None:
            settings["local_dir"] = os.fspath(local_dir)
        comm: Any = "self" if no_dist else process_group
        if comm is None and dist.is_available() and dist.is_initialized():
            comm = dist.group.WORLD
        self.checkpointer = Checkpointer(comm=comm, **settings)
        self._until, self._no_dist, self._group = until, no_dist, process_group
        self._staged = StagedSaves()
        self._last_step: int | None = None
        self._saving = _SaveState()

    # --- the session ---

    def close(self) -> None:
        """Finish background work, report failures and release the directory (collective)."""
        self.checkpointer.close()

    def __enter__(self) -> StorageWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # CheckpointException of torch is a BaseException, but no reason to skip the clean-up of an Exception.
        self.checkpointer.__exit__(kind, error, trace)

    def __reduce__(self) -> NoReturn:
        raise _other_process()

    # --- the stager ---

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: :meth:`stage` is synchronous."""
        return self._synchronize_after_execute

    def stage(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Copy this rank's share of a state (collective); called by ``dcp.async_save``.

        Returns:
            A state that stands for the staged one.

        Raises:
            ConfigError: ``dcp.async_save`` uses another process, no collectives, an impossible ``checkpoint_id``, or
                the default process group with gloo only.
            StateError, StepExistsError, RemoteRankError, PeerTimeoutError: as for ``Checkpointer.checkpoint``.
        """
        call = find_call("async_save") or Call(self._saving.next_id, process_group=self._group)
        self._saving.next_id = None
        if call.in_process:
            raise _other_process()
        self._check_call(call.use_collectives, no_dist=call.no_dist or self._no_dist)
        self._check_ranks(call.process_group)
        self._check_thread(call.process_group)
        step = self._step(call.checkpoint_id)

        def make() -> DcpState:
            if is_ignored(call.planner):
                return dcp_state(state_dict)
            return plan_state(call.planner, state_dict, self._group, alone=self._no_dist)

        return self._staged.put(self._begin(make, step))

    def synchronize_staging(self) -> None:
        """Nothing: :meth:`stage` is synchronous."""

    # --- the writer, in the order of DCP's calls ---

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        try:
            step_of(checkpoint_id)
        except ConfigError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Set the step of the next save."""
        if checkpoint_id is not None:
            step_of(checkpoint_id)
        self._saving.next_id = checkpoint_id

    def storage_meta(self) -> None:
        """Begin a save; there is no metadata for planners."""
        saving = self._saving
        call = find_call("save") or Call(process_group=self._group)
        saving.checkpoint_id, saving.next_id, saving.token = saving.next_id, None, find_token(call.keys)
        self._check_ranks(call.process_group)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Check that DCP uses collectives."""
        self._check_call(kwargs.get("use_collectives", True))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Detect a staged state."""
        self._saving.token = self._saving.token or find_token(item.index.fqn for item in plan.items)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Check that all ranks of the session take part."""
        size = self.checkpointer.world_size
        if len(plans) != size:
            raise _other_ranks(f"{size} ranks", f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""))
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save, or continue a staged save; returns once it is complete at the requested level."""
        saving = self._saving
        token = saving.token or find_token(getattr(planner, "state_dict", None) or ())
        if token is None:
            step = self._step(saving.checkpoint_id)

            def make() -> DcpState:
                if is_ignored(planner):
                    return unflatten(planner.state_dict, planner.mappings)  # type: ignore[attr-defined]
                return planned_state(plan, planner)

            staged: Staged | None = self._begin(make, step)
        else:
            staged = self._staged.take(token)
        if staged is None:
            raise CheckpointError(
                "a staged state was already saved", found=token, todo="call dcp.async_save once for each save"
            )
        pending = staged.pending
        self._check_step(saving.checkpoint_id, pending.step)
        self._wait(pending, raises=token is None)
        items = None if token is None else staged.items
        written = WriteResult(MetadataIndex(""), pending.report.raw_bytes, items)
        future: Future[list[WriteResult]] = Future()
        future.set_result([written])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """After a staged save, replace the token in DCP's metadata by the saved items."""
        saved: list[tuple[Item, ...] | None] = [each.storage_data for of_rank in results for each in of_rank]
        if any(items is not None for items in saved):
            describe(metadata, {item.path: item for items in saved for item in items or ()}.values())

    # --- both ---

    def _begin(self, make: Callable[[], DcpState], step: int) -> Staged:
        """Copy this rank's share (collective); an error of ``make`` is raised on all ranks."""
        items: tuple[Item, ...] = ()

        def tree() -> Any:
            nonlocal items
            found = make()
            items = found.items
            return found.tree

        pending = self.checkpointer.checkpoint(state_or_error(tree), step, force=step == self._last_step)
        self._last_step = step
        return Staged(pending, items)

    def _step(self, checkpoint_id: Any) -> int:
        return self.checkpointer.next_step() if checkpoint_id is None else step_of(checkpoint_id)

    def _wait(self, pending: Pending, *, raises: bool) -> None:
        """Wait until the save is complete at the requested level."""
        if not pending.levels:
            why = "on_busy='skip' dropped it" if pending.skipped else "it was not due at any level"
            raise CheckpointError(f"step {pending.step} was not saved: {why}", todo="see `every` and `on_busy`")
        for level in [self._until] if self._until in pending.levels else sorted(pending.levels, key=_LEVELS.index):
            if raises:
                pending.wait(level)
                continue
            while not pending.settled(level):
                pending.done(level)  # advances exchanges where background threads cannot
                time.sleep(_POLL_S)
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
                found="False: the ranks could not agree whether a checkpoint is complete",
                todo="omit it: a save exchanges only a few bytes",
            )
        if no_dist and self.checkpointer.world_size > 1:
            raise ConfigError(
                "no_dist=True, but deeppart's writer has a session of several ranks",
                expected="StorageWriter(..., no_dist=True), with a separate directory for each process",
                found=f"a session of {self.checkpointer.world_size} ranks",
            )

    def _check_ranks(self, group: Any) -> None:
        """Check that DCP saves on the ranks of the session: the save would wait for missing ones."""
        expected, found = _ranks_of(self._group), _ranks_of(group)
        if expected != found and not self._no_dist:
            raise _other_ranks(f"ranks {expected}", f"ranks {found}")

    def _check_thread(self, group: Any) -> None:
        """Check that DCP's background thread does not share a gloo group with the training loop."""
        if self.checkpointer.world_size == 1 or _ranks_of(group) is None or group not in (None, dist.group.WORLD):
            return
        backends = dist.get_backend_config(dist.group.WORLD)
        if all(each.endswith(":gloo") for each in backends.split(",")):
            raise ConfigError(
                "dcp.async_save would use the training loop's process group in another thread: gloo may hang or crash",
                expected="a separate process group for checkpoints",
                found=f"the default group, {backends}",
                todo='group = dist.new_group(backend="gloo"), once on all ranks, and '
                "dcp.async_save(..., process_group=group)",
            )

    def _check_step(self, checkpoint_id: Any, step: int) -> None:
        if checkpoint_id is not None and step_of(checkpoint_id) != step:
            raise ConfigError(
                "a state is saved as another step than it was staged for",
                expected=f"step {step}",
                found=f"checkpoint_id {checkpoint_id!r}",
                todo="call dcp.async_save itself, with the checkpoint_id; or omit the checkpoint_id",
            )


class _SaveState(threading.local):
    """The save that a thread is making: DCP makes each save in one thread."""

    #: The ``checkpoint_id`` of the next save, and of this one.
    next_id: Any = None
    checkpoint_id: Any = None
    #: Token of the staged state that is saved.
    token: str | None = None


def _ranks_of(group: dist.ProcessGroup | None) -> list[int] | None:
    """The ranks of a group (None: the default group); None if this rank is not in it, or there are no groups."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    found = dist.group.WORLD if group is None else group
    return dist.get_process_group_ranks(found) if isinstance(found, dist.ProcessGroup) else None


def _other_ranks(expected: str, found: str) -> ConfigError:
    return ConfigError(
        "the ranks of dcp.save are not those of the session of deeppart's writer",
        expected=expected,
        found=found,
        todo="use the same process_group; with no_dist=True, StorageWriter(..., no_dist=True)",
    )


def _other_process() -> ConfigError:
    return ConfigError(
        "deeppart's writer cannot save in another process",
        expected="AsyncCheckpointerType.THREAD",
        found="AsyncCheckpointerType.PROCESS: the session's connections, threads and directory are in this process",
        todo="omit async_checkpointer_type: threads write the copied share in the background",
    )


# --- planners ---


def is_ignored(planner: SavePlanner | None) -> bool:
    """True for planners that save the whole state unchanged: DCP's own, and BalancedSavePlanner."""
    if planner is None:
        return True
    if type(planner) not in (DefaultSavePlanner, BalancedSavePlanner):
        return False
    if not planner.flatten_state_dict:  # type: ignore[attr-defined]
        raise ConfigError(
            "a planner would pickle nested dicts",
            expected="flatten_state_dict=True",
            found=f"{type(planner).__name__}(flatten_state_dict=False)",
            todo="omit it: dcp.load nests the state again",
        )
    return True


def plan_state(planner: SavePlanner, state: Mapping[str, Any], group: Any, *, alone: bool) -> DcpState:
    """This rank's state, planned as by ``dcp.save`` (collective)."""
    ranks = _DistWrapper(group, not alone and dist.is_available() and dist.is_initialized(), 0)

    def local() -> SavePlan:
        planner.set_up_planner(dict(state), None, ranks.is_coordinator)
        return planner.create_local_plan()

    try:
        plan = ranks.reduce_scatter("plan", local, lambda plans: planner.create_global_plan(plans)[0])
    except CheckpointException as error:
        failed = {rank: f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
        raise CheckpointError(
            "the planner of dcp.async_save failed",
            found="; ".join(f"rank {rank}: {text}" for rank, text in failed.items()),
            todo="see the planner's error; nothing was saved",
        ) from error
    return planned_state(planner.finish_plan(plan), planner)


def planned_state(plan: SavePlan, planner: SavePlanner) -> DcpState:
    """The state that a plan assigns to this rank."""
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
                "a planner resolved a tensor item to another type", found=type(piece).__name__, where=f"item {name}"
            )
        chunk = item.tensor_data.chunk
        shape, boxes, pieces = tensors.setdefault(name, (tuple(item.tensor_data.size), [], []))
        boxes.append(Box(tuple(chunk.offsets), tuple(chunk.sizes)))
        pieces.append(piece.detach())
    for name, (shape, boxes, pieces) in tensors.items():
        flat[name] = pieces[0] if boxes == [Box.whole(shape)] else LocalShards(shape, boxes, pieces)
    # List indices become strings, and lists dicts, since each rank may have only some of the elements.
    found = unflatten(flat, {name: tuple(map(str, paths.get(name, (name,)))) for name in flat})
    items = [
        Item(item.path, tensors[name][2][0].dtype, tensors[name][0])
        if (name := item.name) in tensors
        else Item(item.path)
        for item in found.items
    ]
    return DcpState(found.tree, tuple(items))


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """The value that the planner would pickle."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is not None:
        return look_up(item.index)
    data: Any = planner.resolve_data(item)
    try:
        data.seek(0)
        return torch.load(data, weights_only=True)
    except Exception as error:  # of the planner
        raise UnsupportedLeafError(
            "a planner provides a value only as a pickle, which is not stored",
            found=f"{type(error).__name__}: {error}".partition("\n")[0],
            where=f"item {item.index.fqn}",
            todo="add a method lookup_object(index) to the planner, as DefaultSavePlanner has",
        ) from error


# --- the arguments of dcp.save ---
#
# ``stage()`` gets the state only; with newer releases of torch (2.13, but not 2.4) the writer gets the
# ``checkpoint_id`` only afterwards, in another thread. But step and planner must be known before a share is copied. So
# these public arguments are read from the stack frame of the public function, and compared with what DCP passes later.
# The keys of the state are read there, too: a planner may drop or rename the token of a staged state.


class Call(NamedTuple):
    """The arguments of ``dcp.save`` or ``dcp.async_save``.

    ``in_process``: another process is to make the save. ``keys``: keys of the state.
    """

    checkpoint_id: Any = None
    planner: Any = None
    in_process: bool = False
    no_dist: bool = False
    use_collectives: bool = True
    process_group: Any = None
    keys: tuple[Any, ...] = ()


def find_call(function: str) -> Call | None:
    """The enclosing call of a DCP function; None if there is none."""
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


# --- staged saves ---


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged save, and this rank's items."""

    pending: Pending
    items: tuple[Item, ...]


class StagedSaves:
    """Staged saves that DCP has not continued yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._staged: dict[int, Staged] = {}  # guarded by the lock

    def put(self, staged: Staged) -> dict[str, None]:
        """Keep a staged save; returns a state with its token."""
        with self._lock:
            number = next(self._numbers)
            self._staged[number] = staged
            for old in sorted(self._staged)[:-MAX_STAGED]:
                del self._staged[old]
        return {f"{_TOKEN}{number}": None}

    def take(self, token: str) -> Staged | None:
        """Remove and return a staged save. Concurrent saves arrive in any order."""
        with self._lock:
            return self._staged.pop(int(token.removeprefix(_TOKEN)), None)


def find_token(names: Iterable[object]) -> str | None:
    """The token among the names of items; None if there is none."""
    return next((name for name in names if isinstance(name, str) and name.startswith(_TOKEN)), None)


# --- DCP's metadata ---


def describe(metadata: Metadata, items: Iterable[Item]) -> None:
    """Set a metadata record to these items, in place: each tensor is one chunk, as any box of it can be read."""
    found = {item.name: item for item in items}
    metadata.state_dict_metadata = {name: item_metadata(item.dtype, item.shape) for name, item in found.items()}
    metadata.planner_data = {name: item.path for name, item in found.items()}
