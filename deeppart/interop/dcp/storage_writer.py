"""A storage writer for DCP: ``dcp.save`` and ``dcp.async_save`` make checkpoints of this library."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner
from torch.distributed.checkpoint import StorageWriter as TorchStorageWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from deeppart.checkpointer import Checkpointer
from deeppart.comm import SingleComm
from deeppart.errors import CheckpointError, ConfigError, as_error
from deeppart.interop.dcp.calls import AsyncSave, Save, calling_async_save, calling_save
from deeppart.interop.dcp.described import fill
from deeppart.interop.dcp.handover import Answer, Staged, StagedSaves, Wrote, answered, mark_among
from deeppart.interop.dcp.names import Named, named, step_of
from deeppart.interop.dcp.planned import decides_nothing, part_of, planned_part, state_of
from deeppart.interop.refusal import Refused
from deeppart.model import LEVELS
from deeppart.pending import FAILED, Pending

_PAUSE_S = 5e-3


class StorageWriter(TorchStorageWriter):
    """Saves what ``dcp.save`` and ``dcp.async_save`` are given as steps of a :class:`deeppart.Checkpointer`.

    It holds a session: one for all saves, closed at the end. Constructor and :meth:`close` are calls of all ranks. It
    is its own stager: ``dcp.async_save`` returns when this rank's share of the state is copied, 1/N of what N ranks
    have in common. ``checkpoint_id`` is a step: a number, a name that ends in one, or nothing for the next.

    Args:
        persistent_dir, local_dir: as of :class:`deeppart.Config`.
        process_group: of the ranks that save, the same as for ``dcp.save``; None for all.
        no_dist: this process saves for itself, in a directory of its own (``dcp.save(no_dist=True)``).
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
        if until is not None and until not in LEVELS:
            raise ConfigError("impossible value for until", expected=f"one of {LEVELS}, or None", found=repr(until))
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
        # CheckpointException of torch is no Exception; it is an error all the same.
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
            What stands for the state in the save that follows.

        Raises:
            ConfigError: of ``dcp.async_save``: another process or no collectives, an impossible ``checkpoint_id``, or
                the default process group where that is gloo alone.
            StateError, StepExistsError, RemoteRankError, PeerTimeoutError: as of ``Checkpointer.checkpoint``.
        """
        call = calling_async_save() or AsyncSave(self._saving.given, process_group=self._group)
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
        """The next save is of this step.

        Raises:
            ConfigError: it names none.
        """
        if checkpoint_id is not None:
            step_of(checkpoint_id)
        self._saving.given = checkpoint_id

    def storage_meta(self) -> None:
        """Nothing for planners. A save begins here.

        Raises:
            ConfigError: it is of another process group.
        """
        saving = self._saving
        call = calling_save() or Save(process_group=self._group)
        saving.checkpoint_id, saving.given, saving.mark = saving.given, None, mark_among(call.keys)
        self._check_ranks(call.process_group)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See that DCP saves as this writer can.

        Raises:
            ConfigError: it does not.
        """
        self._check_call(kwargs.get("use_collectives", True))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """What this rank has staged is told."""
        mark = self._saving.mark = self._saving.mark or mark_among(item.index.fqn for item in plan.items)
        return plan if mark is None else replace(plan, storage_data=self._staged.told(mark))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """See that all ranks of the session take part.

        Raises:
            ConfigError: others do.
        """
        size = self.checkpointer.world_size
        if len(plans) != size:
            raise ConfigError(
                "DCP saves on other ranks than deeppart's writer was made for",
                expected=f"{size} ranks",
                found=f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""),
                todo="give both the same process_group; with no_dist=True, StorageWriter(..., no_dist=True)",
            )
        return answered(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save, or see a staged save to its end; returns when it is complete at the level asked for.

        Raises:
            CheckpointError: it is not.
            ConfigError: the save is of something else than what was staged.
            StateError, StepExistsError, RemoteRankError, PeerTimeoutError: as of ``Checkpointer.checkpoint``.
        """
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
        self._wait(pending, told=mark is None)
        answer = plan.storage_data
        is_known = isinstance(answer, Answer) and answer.mark == mark and not answer.wants
        items = None if mark is None or is_known else staged.items
        written = WriteResult(MetadataIndex(""), pending.report.raw_bytes, Wrote(pending.step, items))
        future: Future[list[WriteResult]] = Future()
        future.set_result([written])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put into DCP's record what was saved, where DCP saw only what stood for it."""
        wrote: list[Wrote] = [each.storage_data for of_rank in results for each in of_rank]
        told = [each.items for each in wrote if each.items is not None]
        if told:
            fill(metadata, {item.path: item for items in told for item in items}.values())

    # --- both ---

    def _begin(self, looked: Callable[[], Named], step: int) -> Staged:
        """Copy this rank's share (collective); what goes wrong here alone is raised on all ranks."""
        found: Named | None = None
        state: Any
        try:
            found = looked()
            state = found.tree
        except Exception as error:  # of the caller's objects and planner: the other ranks wait in checkpoint()
            state = Refused(as_error(error, "looking at the state failed"))
        pending = self.checkpointer.checkpoint(state, step, force=step == self._last)
        assert found is not None, "a state that is refused raises"
        self._last = step
        return Staged(pending, found.items)

    def _step(self, checkpoint_id: Any) -> int:
        return self.checkpointer._next_step() if checkpoint_id is None else step_of(checkpoint_id)

    def _wait(self, pending: Pending, *, told: bool) -> None:
        """Until the save is complete where the caller wants it."""
        if not pending.levels:
            why = "on_busy='skip' dropped it" if pending.skipped else "it was due at no level"
            raise CheckpointError(f"step {pending.step} was not saved: {why}", todo="see `every` and `on_busy`")
        for level in [self._until] if self._until in pending.levels else sorted(pending.levels, key=LEVELS.index):
            if told:
                pending.wait(level)
                continue
            while not pending.settled(level):
                pending.done(level)  # advances exchanges where that is left to whoever waits
                time.sleep(_PAUSE_S)
            report = pending.report.levels[level]
            if report.state == FAILED:
                raise CheckpointError(
                    f"step {pending.step} is not complete at level {level}", found=report.error, where=f"level {level}"
                )

    def _check_call(self, use_collectives: bool, *, no_dist: bool | None = None) -> None:
        if not use_collectives:
            raise ConfigError(
                "deeppart's writer cannot save with use_collectives=False",
                expected="use_collectives=True",
                found="False: every rank would save for itself, and nobody would know when a checkpoint is complete",
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
    """What a thread knows of the save that it makes.

    Attributes:
        given: the ``checkpoint_id`` of the next one.
        checkpoint_id: of this one.
        mark: name of the item that stands for a staged state.
    """

    given: Any = None
    checkpoint_id: Any = None
    mark: str | None = None


def _ranks_of(group: dist.ProcessGroup | None) -> list[int] | None:
    """The ranks of a group, of all for None; None if there are no groups, or this rank is not in it."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    found = dist.group.WORLD if group is None else group
    return dist.get_process_group_ranks(found) if isinstance(found, dist.ProcessGroup) else None


def _comm_of(group: dist.ProcessGroup | None, no_dist: bool) -> Any:
    if no_dist:
        return SingleComm()
    return dist.group.WORLD if group is None and dist.is_available() and dist.is_initialized() else group


def _other_process() -> ConfigError:
    return ConfigError(
        "deeppart's writer cannot save in another process",
        expected="AsyncCheckpointerType.THREAD",
        found="AsyncCheckpointerType.PROCESS: it has the session's connections, threads and directory in this one",
        todo="leave async_checkpointer_type out: the share is copied first, and threads write it in the background",
    )
