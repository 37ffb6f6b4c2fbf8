"""A storage writer for DCP: ``dcp.save`` and ``dcp.async_save`` make deeppart's checkpoints.

DCP's planners decide which rank writes what, which is ignored here: deeppart partitions the state itself. Planners that
may also omit, rename or transform items are refused.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, SavePlan, SavePlanner
from torch.distributed.checkpoint import StorageWriter as TorchStorageWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from deeppart import Checkpointer, Pending
from deeppart.config import check_choice
from deeppart.errors import CheckpointError, ConfigError
from deeppart.interop.dcp.names import DcpState, Item, dcp_state, step_of, unflatten
from deeppart.interop.dcp.planner import BalancedSavePlanner
from deeppart.interop.dcp.writing import item_metadata
from deeppart.interop.saving import state_or_error

_LEVELS = ("local", "partner", "parity", "persistent")
_POLL_S = 5e-3
#: The only key of the state that stands for a staged one in DCP's save; its value is a :class:`Staged`.
_STAGED = "deeppart staged state"
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
            check_planner(call.planner)
            return dcp_state(state_dict)

        return {_STAGED: self._begin(make, step)}

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
        saving.checkpoint_id, saving.next_id = saving.next_id, None
        self._check_ranks(call.process_group)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Check that DCP uses collectives."""
        self._check_call(kwargs.get("use_collectives", True))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Check that all ranks of the session take part."""
        size = self.checkpointer.world_size
        if len(plans) != size:
            raise _other_ranks(f"{size} ranks", f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""))
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save, or continue a staged save; returns once it is complete at the requested level."""
        checkpoint_id = self._saving.checkpoint_id

        def make() -> DcpState:
            check_planner(planner)
            flattened: Any = planner
            return unflatten((tuple(flattened.mappings[name]), each) for name, each in flattened.state_dict.items())

        found = getattr(planner, "state_dict", {}).get(_STAGED)
        staged = found if isinstance(found, Staged) else None
        pending = (staged or self._begin(make, self._step(checkpoint_id))).pending
        self._check_step(checkpoint_id, pending.step)
        self._wait(pending, raises=staged is None)
        written = WriteResult(MetadataIndex(""), pending.report.raw_bytes, None if staged is None else staged.items)
        future: Future[list[WriteResult]] = Future()
        future.set_result([written])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """After a staged save, describe the saved items in DCP's metadata."""
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


def check_planner(planner: SavePlanner | None) -> None:
    """Refuse planners that might not save the whole state unchanged, as DCP's own and BalancedSavePlanner do."""
    if planner is None:
        return
    if type(planner) not in (DefaultSavePlanner, BalancedSavePlanner):
        raise ConfigError(
            "deeppart's writer saves the state that it is given, and does not execute plans",
            expected="no planner, DefaultSavePlanner or BalancedSavePlanner",
            found=type(planner).__name__,
            todo="omit planner=, and pass the state that is to be saved",
        )
    if not planner.flatten_state_dict:  # type: ignore[attr-defined]
        raise ConfigError(
            "a planner would pickle nested dicts",
            expected="flatten_state_dict=True",
            found=f"{type(planner).__name__}(flatten_state_dict=False)",
            todo="omit it: dcp.load nests the state again",
        )


# --- the arguments of dcp.save ---
#
# ``stage()`` gets the state only; with newer releases of torch (2.13, but not 2.4) the writer gets the
# ``checkpoint_id`` only afterwards, in another thread. But step and planner must be known before a share is copied. So
# these public arguments are read from the stack frame of the public function, and compared with what DCP passes later.


class Call(NamedTuple):
    """The arguments of ``dcp.save`` or ``dcp.async_save``.

    ``in_process``: another process is to make the save.
    """

    checkpoint_id: Any = None
    planner: Any = None
    in_process: bool = False
    no_dist: bool = False
    use_collectives: bool = True
    process_group: Any = None


def find_call(function: str) -> Call | None:
    """The enclosing call of a DCP function; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name, frame.f_globals.get("__name__")) != (function, _MODULE):
        frame = frame.f_back
    if frame is None:
        return None
    found = frame.f_locals
    return Call(
        found.get("checkpoint_id"),
        found.get("planner"),
        getattr(found.get("async_checkpointer_type"), "value", None) == "process",
        bool(found.get("no_dist", False)),
        bool(found.get("use_collectives", True)),
        found.get("process_group"),
    )


class Staged(NamedTuple):
    """A staged save, and this rank's items."""

    pending: Pending
    items: tuple[Item, ...]


# --- DCP's metadata ---


def describe(metadata: Metadata, items: Iterable[Item]) -> None:
    """Set a metadata record to these items, in place: each tensor is one chunk, as any box of it can be read."""
    found = {item.name: item for item in items}
    metadata.state_dict_metadata = {name: item_metadata(item.dtype, item.shape) for name, item in found.items()}
    metadata.planner_data = {name: item.path for name, item in found.items()}
