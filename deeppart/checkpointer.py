"""The public class: checkpoint and restore."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from deeppart._gc import collection_paused
from deeppart.cadence import CadenceReport
from deeppart.comm import SingleComm, agree, raise_together
from deeppart.config import Config, check_state, check_step, refuse_in_fork
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    raised_later,
    say,
)
from deeppart.model import LEVELS, RestoreReport, ScrubReport
from deeppart.pending import Pending
from deeppart.progress import is_watched, pause_watch, reporting
from deeppart.recovery import SavedStep
from deeppart.save import CallNotes, Saver, size_share
from deeppart.session import (
    EXIT_CODES,
    GO_ON,
    SUSPICION_PATIENCE_S,
    Background,
    Saves,
    StepHistory,
    Stops,
    configuration_of,
    heal_redundancy,
    not_finished,
    open_session,
    preview_restore,
    process_sessions,
    restore_step,
    say_restored,
    still_busy,
    warn_restored,
    warn_suspects,
    warn_unsaved,
)
from deeppart.state.paths import PerRank, PerRankPolicies, policies_or_refusal
from deeppart.state.restore import Globs, Request, Strict, request_or_refusal

#: The share of the timeout for which a start waits for earlier sessions of this process: the other ranks wait longer.
_SETTLE_SHARE = 0.8


@functools.cache
def _report_optimizer_steps() -> None:
    """Report every optimizer's steps to the agent, once in a process."""
    register_optimizer_step_post_hook(reporting.optimized)


class Checkpointer:
    """Saves and restores the state of one job.

    Every method is collective: all ranks call it, in the same order.

    Args:
        config: a :class:`deeppart.Config`; None for the environment's and ``deeppart.toml``'s.
        comm: an mpi4py communicator, or a process group of ``torch.distributed``; None for all that was launched;
            "self" for this process alone.
        settings: instead of a ``config``, its settings by name: ``Checkpointer(every="auto")``.

    Attributes:
        config: the settings in use.
        explanation: lines about how the last restore found its parts.
        restored: what the last restore has done on this rank; None where there was nothing to restore.

    Raises:
        LaunchError, ConfigError, StorageError, DirectoryInUseError, RemoteRankError, PeerTimeoutError: at start-up.

    Example:
        >>> import deeppart, torch
        >>> state = {"weights": torch.zeros(1000), "epoch": 0}
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     first = checkpointer.restore(state)  # None: there is no checkpoint yet
        ...     pending = checkpointer.checkpoint(state, step=100)
        ...     print(first, checkpointer.restore(state))
        None 100
    """

    def __init__(self, config: Config | None = None, comm: Any = None, **settings: Any) -> None:
        if is_watched():
            _report_optimizer_steps()
        self._process = os.getpid()
        self._calling = threading.Lock()  # held by the call in progress
        comm = SingleComm() if isinstance(comm, str) and comm == "self" else comm
        self.config = configuration_of(config, settings, comm)
        process_sessions.settle(_SETTLE_SHARE * self.config.timeout)
        self._call_notes = CallNotes()
        with raised_later(self._call_notes.note):
            self._session = open_session(self.config, comm)
        self._comm = self._session.comm
        try:
            with raised_later(self._call_notes.note):
                self._background = Background(self._session, self._call_notes)
            self._pipeline = self._background.pipeline
            record, threads = self._background.suspicions.record, self._session.processors.waiting
            self._saver = Saver(self._comm, self.config, self._background.staging, record, threads=threads)
        except BaseException:  # such as: no more threads are possible
            self._session.abandon()
            raise
        # Called if a checkpointer is dropped without being closed, or if its start fails from here on.
        self._dropped = weakref.finalize(self, self._background.leave)
        self._dropped.atexit = False
        process_sessions.add(self, self._background)
        self._closed = False
        self._steps = StepHistory(self._session, self._background.recent)
        self._stops = Stops(self._session)
        self._saves = Saves(self._session, self._saver, self._background, self._steps, self._stops)
        self.explanation: tuple[str, ...] = ()
        self.restored: RestoreReport | None = None

    @property
    def rank(self) -> int:
        """This rank."""
        return self._comm.rank

    @property
    def failures(self) -> int:
        """How many levels of earlier checkpoints failed in the background, as of the last call that has reported it.

        ``checkpoint()`` and ``close()`` do.
        """
        return self._saves.failures

    @property
    def repairing(self) -> bool:
        """True if copies or parity that a restored step had lost are still being rebuilt in the background."""
        return self._pipeline.repairing

    @property
    def preparing(self) -> bool:
        """True if preparation that :meth:`prepare` has begun on this rank continues in the background."""
        return not self._background.preparation.wait(0.0)

    @property
    def scrubbed(self) -> ScrubReport:
        """The work of scrubbing (``scrub_bandwidth``) so far on this rank."""
        scrubber = self._background.scrubber
        return ScrubReport() if scrubber is None else scrubber.report

    @property
    def cadence(self) -> CadenceReport | None:
        """The cadence of ``every="auto"`` and its reasons, on rank 0, once a call has found a checkpoint complete.

        Otherwise None.
        """
        return None if self._background.auto is None else self._background.auto.report

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._comm.size

    def checkpoint(self, state: Any, step: int, *, force: bool = False) -> Pending:
        """Save a state; returns as soon as it may change again.

        With ``every="auto"`` call it at every training step: most calls return at once and go to no level
        (``Pending.levels``). Storage errors never come from here: they show in ``wait``, in ``report`` and as a warning
        at the next call.

        Args:
            state: any nesting of dicts, lists, tuples and objects with ``state_dict()``, over tensors, arrays and
                small values.
            step: 0 or more, not yet used in this directory.
            force: save now, at all levels that are on, whatever ``every`` says: at the end, or when the time is up. The
                last step, restored or saved, may be given again: it is saved once more, and that is what is restored.

        Returns:
            A handle on what goes on in the background.

        Raises:
            StateError: the state holds something that cannot be stored, or differs in structure between ranks.
            StepExistsError: the step is committed already.
            CheckpointError: the pipeline was full for 0.8 times ``timeout`` (``on_busy="wait"``); or another call of
                this checkpointer is under way.
            RanksDisagreeError, RemoteRankError, PeerTimeoutError: from the other ranks.
            SystemExit: the job was asked to end, by ``deeppart halt``, or, under ``deeppart run``, by a signal that the
                script does not handle. The state is saved at all levels, and the checkpointer is closed. If that fails,
                training goes on, and later calls try again.
        """
        with self._alone("checkpoint"):
            check_state(state, "checkpoint")
            step = check_step(step, "checkpoint(state, step)")
            self._saves.warn(step)
            reporting.called(step, self._saves.safe_s, fails=self._saves.fails)
            pending = self._save(state, step, force=force)
            if self._saves.stop != GO_ON and not self._saves.is_at_all_levels(pending):
                if not self._pipeline.wait_until_idle(self.config.timeout):  # on_busy="skip" would skip it
                    raise not_finished(self.config.timeout)
                pending = self._save(state, step, force=True)
        if self._saves.stop != GO_ON:
            self._end_job(pending)
        return pending

    def _save(self, state: Any, step: int, *, force: bool) -> Pending:
        with raised_later(self._call_notes.note):
            pending = self._saves.save(state, step, force=force)
        if pending is None:
            return Pending(step, frozenset())
        self._background.recorder.begun(pending)
        return pending

    def _end_job(self, pending: Pending) -> None:
        """End the ranks, which the script does not do; if the checkpoint has failed, they go on."""
        level, what = max(pending.levels, key=LEVELS.index), f"checkpoint(step={pending.step}), whether it is complete"
        pending.wait_settled(level)
        fails = {"fails": int(not pending.done(level))}
        if agree(self._comm, {}, fails, what, self.config.timeout).flags["fails"]:
            if self.rank == 0:
                say(f"step {pending.step} is not saved, so the ranks do not end yet: a later checkpoint tries again")
            self._saves.go_on()
            return
        self.close()
        if self.rank == 0:
            say(f"step {pending.step} is saved, and the ranks end, as they were asked to")
        sys.exit(EXIT_CODES[self._saves.stop])

    @collection_paused()  # one in between takes longer than a small restore, and finds nothing
    def restore(
        self,
        state: Any,
        step: int | None = None,
        per_rank: PerRank = "strict",
        *,
        keys: Globs | None = None,
        exclude: Globs | None = None,
        strict: Strict = True,
        cast: bool = False,
        rename: Mapping[str, str] | None = None,
        required: bool = False,
    ) -> int | None:
        """Bring a state back, in place; on any number of ranks.

        Args:
            state: the live state, built as when it was saved. Live tensors are written into; what the state lacks is
                created, and so is, in dicts and lists, what replaces jagged, other sparse and meta tensors. In the
                outermost dict, tensors and objects are restored only under keys that it has, unless it is empty.
                Lists, Counters and dicts of small values lose what has been added to them since.
            step: which one; None for the newest that can be recovered.
            per_rank: what to do with leaves that each rank saved for itself when the world size has changed: "strict"
                refuses, "rank0" gives all ranks what rank 0 had, "drop" leaves the live ones alone and says which, a
                function ``(path, old ranks' values, new rank, new world size) -> value`` maps them. Or a table of
                globs over saved paths: ``{"rng*": "drop", "*": "rank0"}``; the first that matches decides, and what
                none matches is "strict".
            keys: globs over paths of the live state: ``"model/*"``. Everything else stays as it is. None for all.
            exclude: globs of what stays as it is, even so.
            strict: False: live leaves that the checkpoint lacks stay as they are, and saved ones that the live state
                lacks are left out; ``restored`` lists both. Optimizers and other objects that are no modules are
                restored whole, or refused. A function ``(path, difference) -> bool`` is asked for each, where
                ``difference`` is "missing" or "unexpected", before anything changes: True leaves it as strict=False
                does, anything else is as with True.
            cast: True: floating-point leaves may have another dtype than in the checkpoint, and are converted.
            rename: saved names -> names in the live state: ``{"module.*": "*"}``. A pattern without ``/`` is compared
                with single keys, one with ``/`` with whole paths; ``*`` stands for any text without ``/``. The names
                that DistributedDataParallel and torch.compile make of others need no rule.
            required: True: it is an error if there is no checkpoint.

        Returns:
            The step restored, or None if there is no checkpoint. ``Checkpointer.restored`` says what was done; rank 0
            prints it in one line.

        Raises:
            ConfigError: an impossible argument.
            RestoreError: there are checkpoints, but none (or not ``step``) can be recovered; or there may be one where
                something on a node could not be listed or read; or there is none, and ``required`` is True.
            StateError: the live state does not match; it is unchanged.
            PerRankError: see ``per_rank``.
            CheckpointError: another call of this checkpointer is under way.
            RemoteRankError, PeerTimeoutError: from the other ranks.
        """
        with self._alone("restore"), raised_later(self._call_notes.note):
            check_state(state, "restore")
            step = None if step is None else check_step(step, "restore(state, step)")
            request, impossible = request_or_refusal(keys, exclude, strict, cast, rename)
            policies, refusal = policies_or_refusal(per_rank)
            reporting.ready()
            restored = self._bring_back(state, step, policies, request, refusal or impossible, required=required)
            reporting.restored(restored)
            return restored

    def prepare(self, state: Any) -> None:
        """Get ready for the first checkpoint of a state, so that it need not wait for memory.

        All ranks compare the state and share it out, as ``checkpoint()`` would; nothing is saved. Then, in the
        background (:attr:`preparing`), the memory for this rank's share is touched. Call it when the state has all its
        tensors: after ``restore()`` has returned a step, or after the first ``optimizer.step()``. The first checkpoint
        still compares all of the state.

        Args:
            state: as for ``checkpoint()``.

        Raises:
            CheckpointError: another call of this checkpointer is under way.
            StateError, RanksDisagreeError, RemoteRankError, PeerTimeoutError: as for ``checkpoint()``.
            MemoryError: there is not enough for a share.
        """
        with self._alone("prepare"), raised_later(self._call_notes.note), collection_paused():
            check_state(state, "prepare")
            self._background.preparation.begin(size_share(self._comm, self.config, state))

    def next_step(self) -> int:
        """The first step after all used ones: for saves without a number."""
        return self._steps.following()

    def close(self) -> None:
        """Finish the background work, report failures, release the directory. A second call does nothing."""
        if self._closed or self._process != os.getpid():  # a forked process has no background
            return
        with self._alone("close"), pause_watch():
            self._finish()

    def _finish(self) -> None:
        self._closed = True
        self._stops.close()
        self._saver.close()
        self._dropped.detach()
        try:
            finished = self._background.finish(self.config.timeout)
        except BaseException:  # an interrupt
            self._background.leave()
            raise
        try:
            self._background.suspicions.wait(self.config.timeout)
            with raised_later(self._call_notes.note):
                self._saves.report_failures()
                if self._background.auto is not None:
                    self._background.auto.end(failed=False)
                    warn_unsaved(self._session, self._background.auto.unsaved_step)
        finally:
            self._background.release()
        if finished and not self.failures and self._session.memory is not None:
            self._session.memory.drop()  # all levels have what it has
        try:
            self._saves.report_failures()  # may raise, if warnings are errors: everything else is done
        finally:
            if not finished:
                raise not_finished(self.config.timeout)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        # The other ranks may never arrive: do not wait for them, and do not hide the exception in progress.
        if not self._closed and self._process == os.getpid():
            self._closed = True
            self._dropped.detach()
            self._saver.close()
            self._background.suspicions.wait(SUSPICION_PATIENCE_S)
            self._background.leave(after_error=True)
            self._stops.close()
            if self._background.auto is not None:
                self._background.auto.end(failed=True)

    # --- for deeppart.extension ---

    @collection_paused()
    def _preview(self, step: int | None) -> SavedStep | None:
        """The step that :meth:`restore` would restore here, without its bytes (collective); None if there is none."""
        with self._alone("restore"):
            raise_together(self._comm, self._unfinished(), "restore", self.config.timeout)
            return preview_restore(self._session, step, self._background.arena)

    def _raise_together(self, error: DeeppartError | None) -> None:
        """Raise this rank's error, if there is one, and one that quotes it on the others (collective)."""
        raise_together(self._comm, error, "restore", self.config.timeout)

    # --- the steps of restore() ---

    def _bring_back(
        self,
        state: Any,
        step: int | None,
        policies: PerRankPolicies,
        request: Request,
        refusal: DeeppartError | None,
        *,
        required: bool = False,
    ) -> int | None:
        session, timeout, began = self._session, self.config.timeout, time.monotonic()
        self.restored = None
        unfinished = self._unfinished()
        self._saver.agree_on_restore(step, policies, request.digest())
        raise_together(self._comm, refusal or unfinished, "restore", timeout)
        self._background.suspicions.wait(timeout)
        wanted, arena = request.without(self.config.exclude), self._background.arena
        done, inventory, self.explanation = restore_step(
            session, state, step, policies, wanted, arena, required=required
        )
        if done is None:
            self._steps.restored_from(None)
            return None
        self.restored, recovered = done.report, done.recovered
        self._saver.mark_known(done.per_rank)
        self._steps.restored_from(recovered.attempt.step)  # not before: after a failed restore, training starts over
        self._background.keeping.went_on()
        if self._background.auto is not None:
            self._background.auto.restored(recovered.slowest_level_read)
        self.explanation += heal_redundancy(session, self._background, recovered, inventory)
        self._background.recorder.restored(recovered.attempt.step, time.monotonic() - began)
        say_restored(session, recovered, time.monotonic() - began)
        self.explanation += warn_suspects(session, recovered.attempt)
        warn_restored(session, recovered.attempt, inventory, done.notices, named=step is not None)
        return recovered.attempt.step

    def _unfinished(self) -> DeeppartError | None:
        """Wait for the background work; returns an error if it takes too long, or cannot continue."""
        if not self._pipeline.wait_until_idle(self.config.timeout):
            return still_busy(self.config.timeout)
        return self._pipeline.failure

    # --- of all calls ---

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Allow one call at a time: calls share the flattened state."""
        refuse_in_fork(self._process, self.rank)
        if not self._calling.acquire(blocking=False):
            raise CheckpointError(
                f"{what} was called while another call of this checkpointer is under way",
                expected="one call at a time, in whatever thread",
                todo="in a signal handler only set a flag, and look at it in the loop: deeppart.elastic.should_stop() "
                "does both; let threads take turns",
            )
        try:
            if self._closed:
                if self._saves.stop != GO_ON:  # a call in `finally`: it does not hide that the job ends
                    sys.exit(EXIT_CODES[self._saves.stop])
                todo = f"{what} inside the `with` block; atexit handlers that were registered before it run too late"
                raise CheckpointError("this checkpointer is closed", todo=todo)
            yield
        finally:
            self._calling.release()
