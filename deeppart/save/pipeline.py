"""The background of a save: capture, store, flush, protect; each ends in a commit round.

============  ==================================================  ==============================  ===============
stage         what it does                                        levels                          then
============  ==================================================  ==============================  ===============
capture       makes the deferred copies (``capture="lazy"``)                                      store
store         writes the staged share to the local level          local                           flush, protect
flush         follows the local part to the persistent level      persistent                      remove
protect       exchanges copies and parity with other nodes        partner, parity
remove        removes old steps, on rank 0                        persistent
============  ==================================================  ==============================  ===============

Each stage has a thread, with limited bandwidth where it writes (:mod:`deeppart.save.write`); another thread writes
behind the flush. In a *commit round* every rank reports to rank 0, which commits if all have succeeded,
and sends the outcome to all.

Invariants
----------
* A failure never leaves a thread: it becomes the level's outcome, on every rank, and the next checkpoint continues.
* If a stage cannot even give up its work, all checkpoints in flight fail with that error, on every rank, and nothing
  more is saved (:attr:`Pipeline.failure`).
* Staging memory is free again once the share is complete in a file (:class:`deeppart.save.job.StagingLease`).
* Rounds of one level happen in the same order on every rank, on a channel of their own.
* A level of a step is complete on all ranks or on none; an error on one rank is an error of the level everywhere. Only
  a rank that gives up waiting in the middle of the round does not know: the manifest decides then.
* Files written at a level that is not complete are removed at once, unless it is unknown whether it is complete.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from functools import partial
from pathlib import Path
from typing import TypeVar

from deeppart import access
from deeppart.comm import Comm, Operation, RoundResult, commit_round, finish
from deeppart.config import Config
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    CommError,
    DeeppartError,
    RemoteRankError,
    as_error,
    on_ranks,
)
from deeppart.model import MOST_IN_FLIGHT, REDUNDANT_LEVELS, Level, PartRecord, StepKey
from deeppart.part import PartSummary
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.save.encoding import Compressing
from deeppart.save.growing_file import GrowingFile
from deeppart.save.incremental import Incremental
from deeppart.save.job import Job, Opened, Outcome, Reader, Repair, StagingLease
from deeppart.save.keeping import Keeping
from deeppart.save.protect import Protector, remove_files
from deeppart.save.retention import CallNotes, Retention, report_refusals
from deeppart.save.workers import Workers, lower_priority
from deeppart.save.write import RankStorage, ShareWriter
from deeppart.state.compare import REGISTRY

T = TypeVar("T")
#: A stage is joined for this long at the end, in seconds; it may hang in a system call on storage.
_END_S = 1.0


class Pipeline:
    """The background threads of one rank.

    Attributes:
        failure: the error that has ended a thread of this rank, so that nothing more is saved; or None.
    """

    def __init__(
        self,
        channels: Mapping[str, Comm],
        storage: RankStorage,
        compressing: Compressing,
        incremental: Incremental,
        retention: Retention,
        keeping: Keeping,
        protector: Protector,
        call_notes: CallNotes,
        config: Config,
    ) -> None:
        self._channels, self._storage, self._protector = channels, storage, protector
        self._compressing, self._incremental = compressing, incremental
        self._retention, self._keeping = retention, keeping
        self.call_notes, self.timeout = call_notes, config.timeout
        #: Guards the checkpoints in flight, which the training thread adds and the stages remove.
        self._changed = threading.Condition()
        self._in_flight: list[Job] = []
        self.failure: CheckpointError | None = None
        self._repairs: list[Repair] = []
        self._lease = StagingLease(None, ())  # the latest; used by the training thread alone
        self._capturer = Capturer() if config.capture == "lazy" else None
        names = ["capture"] * (self._capturer is not None) + ["store"]
        names += ["protect"] * any(level in channels for level in REDUNDANT_LEVELS)
        names += ["flush"] + ["remove"] * (keeping.is_here and Level.PERSISTENT in channels)
        #: In the order in which they end: each gets its work from those before it.
        self._stages = {name: Workers(1, f"deeppart-{name}", lower_priority) for name in names}
        self._behind = Workers(1, "deeppart-behind", lower_priority)
        for workers in (*self._stages.values(), self._behind, compressing.workers):
            workers.failed = self._break
        self._writer = ShareWriter(storage, compressing, incremental, self._behind, keeping)

    # --- called by the training thread ---

    @property
    def working(self) -> bool:
        """True if a checkpoint is being stored, protected or flushed."""
        return bool(self._in_flight)

    @property
    def staging_is_free(self) -> bool:
        """True if nothing reads the staging memory, or writes to it."""
        return self._lease.over

    def has_room(self) -> bool:
        """True if the pipeline can take a checkpoint now."""
        return self.staging_is_free and len(self._in_flight) < MOST_IN_FLIGHT

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until the pipeline can take a checkpoint; False if it could not within the timeout."""
        return self._wait_until(self.has_room, timeout)

    def submit(self, job: Job) -> None:
        """Take over a checkpoint; its staging memory is leased to the pipeline until it is free again."""
        if not job.lease.over:
            self._lease = job.lease
            self._lease.when_over(self._wake)
        with self._changed:
            self._in_flight.append(job)
        if self._capturer is not None:
            self._capturer.begin(job)
            capture = partial(self._capture, self._capturer, job)
            self._queue("capture", capture, partial(self._give_up_capturing, job))
        else:
            self._queue_store(job, job.failure)
        if Level.PERSISTENT in job.due:
            self._queue("flush", partial(self._flush, job), partial(self._give_up_flushing, job))
        self._fail_all_if_broken()

    def submit_repair(self, repair: Repair) -> None:
        """Take over the rebuilding of redundancy."""
        self.call_notes.hold(repair.attempt)
        with self._changed:
            self._repairs.append(repair)
        stage = "protect" if "protect" in self._stages else "store"
        self._queue(stage, partial(self._repair, repair), lambda failure: self._end_repair(repair))
        self._fail_all_if_broken()

    @property
    def removing(self) -> bool:
        """True if old steps are still to be removed from the persistent level."""
        return self._keeping.under_way

    @property
    def repairing(self) -> bool:
        """True if redundancy is being rebuilt."""
        return bool(self._repairs)

    def holds(self, pending: Pending) -> bool:
        """True if a checkpoint is in flight."""
        return any(job.pending is pending for job in list(self._in_flight))

    @property
    def idle(self) -> bool:
        """True if nothing is in flight."""
        return not self._in_flight and not self._repairs

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until nothing is in flight; False if that took longer than ``timeout`` seconds."""
        return self._wait_until(lambda: self.idle, timeout)

    def close(self, timeout: float) -> None:
        """End the threads; queued work is finished first if ``timeout`` seconds are enough."""
        if not self.wait_until_idle(timeout):
            for channel in self._channels.values():  # ends the waits of these threads
                channel.abandon(CommError("the checkpointer was closed before this was finished"))
        if self._capturer is not None:
            self._capturer.close()
        for workers in self._stages.values():
            workers.close(_END_S)
        self._compressing.close()
        self._behind.close()
        if not self.idle:  # a stage hangs
            self.failure = self.failure or CheckpointError("the checkpointer was closed before this was finished")
            self._fail_all_if_broken()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not condition():
            with self._changed:
                if not condition():
                    self._changed.wait(0.005)
            if time.monotonic() > deadline:
                return condition()
        return True

    # --- the stages ---

    def _queue(self, stage: str, work: Callable[[], None], give_up: Callable[[DeeppartError], None]) -> None:
        """Queue work for a stage. ``give_up`` is called after an unexpected error, instead of the rest of the work: the
        other ranks wait for this rank's report.
        """
        self._stages[stage].submit(self._do, stage, work, give_up)

    def _do(self, stage: str, work: Callable[[], None], give_up: Callable[[DeeppartError], None]) -> None:
        if self.failure is not None:  # all that is in flight has failed
            return
        try:
            work()
        except BaseException as error:
            try:
                give_up(as_error(error, "background work failed"))
            except BaseException as again:
                self._break(f"deeppart-{stage}", again)

    def _capture(self, capturer: Capturer, job: Job) -> None:
        self._queue_store(job, job.failure or capturer.complete(job))

    def _give_up_capturing(self, job: Job, failure: DeeppartError) -> None:
        self._queue_store(job, failure)  # reported in the commit rounds

    def _queue_store(self, job: Job, failure: DeeppartError | None) -> None:
        """Queue the storing of a captured share, or of the error of its capture."""
        self._queue("store", partial(self._store, job, failure), partial(self._give_up_storing, job))

    def _store(self, job: Job, failure: DeeppartError | None) -> None:
        digests = None
        if failure is None:
            try:
                digests = self._writer.prepare(job)
                self._complete_in_memory(job)
            except Exception as error:  # reported in the commit rounds: the other ranks wait for them
                failure = as_error(error, "the captured share could not be read")
        if Level.LOCAL not in job.due:
            _resolve(job, Opened(failure, digests))
            job.lease.done(Reader.STORE)
            return
        job.pending.note_level(Level.LOCAL, RUNNING)
        part: GrowingFile | DeeppartError
        part = self._attempted(Level.LOCAL, lambda: self._open_local(job)) if failure is None else failure
        _resolve(job, Opened(failure, digests, part if isinstance(part, GrowingFile) else None))
        outcome = self._write_local(job, part, digests) if isinstance(part, GrowingFile) else part
        if isinstance(outcome, PartSummary):
            job.lease.stored()
        else:
            job.lease.done(Reader.STORE)
        complete = self._finish_level(job, Level.LOCAL, outcome)
        redundant = job.due & {*REDUNDANT_LEVELS}
        if redundant and complete and isinstance(outcome, PartSummary):
            self._queue("protect", partial(self._protect, job), partial(self._give_up_protecting, job))
        elif redundant:
            self._fail(job, redundant, CheckpointError("the local level, whose parts it protects, is not complete"))

    def _complete_in_memory(self, job: Job) -> None:
        try:
            self._writer.complete_in_memory(job)
        except Exception as error:  # the other levels are to get the share
            text = f"step {job.attempt.step} is not kept in memory: {as_error(error, 'its part could not be made')}"
            self.call_notes.note(text, BackgroundFailureWarning)

    def _open_local(self, job: Job) -> GrowingFile:
        if self._storage.local is None:
            raise CheckpointError("there is no local level to write to")
        return self._writer.open_local(job, self._storage.local)

    def _write_local(self, job: Job, part: GrowingFile, digests: list[bytes] | None) -> PartSummary | DeeppartError:
        return self._timed(job, Level.LOCAL, lambda: self._writer.write_local(job, part, digests))

    def _give_up_storing(self, job: Job, failure: DeeppartError) -> None:
        if not job.opened.done():  # the flush still takes part in its own round
            _resolve(job, Opened(failure))
        elif job.local is not None:
            job.local.give_up()
        job.lease.done(Reader.STORE)
        self._settle_all(job, {Level.LOCAL, *REDUNDANT_LEVELS}, failure)

    def _flush(self, job: Job) -> None:
        opened = job.opened.result()  # bounded: resolved by the store thread even if its work fails, or by _break
        job.pending.note_level(Level.PERSISTENT, RUNNING)
        outcome = self._timed(job, Level.PERSISTENT, lambda: self._writer.write_persistent(job, opened))
        job.lease.done(Reader.FLUSH)
        complete = self._complete(job, Level.PERSISTENT, outcome)
        if complete:
            job.progress.complete(Level.PERSISTENT)
            self._keeping.expect()
        if complete and self._keeping.is_here:
            self._queue("remove", partial(self._remove, job), partial(self._give_up_removing, job))
        else:
            self._settle(job, Level.PERSISTENT)

    def _remove(self, job: Job) -> None:
        self._keeping.remove(job)
        self._settle(job, Level.PERSISTENT)

    def _give_up_removing(self, job: Job, failure: DeeppartError) -> None:
        self.call_notes.note(str(failure), BackgroundFailureWarning)
        self._settle(job, Level.PERSISTENT)

    def _give_up_flushing(self, job: Job, failure: DeeppartError) -> None:
        job.lease.done(Reader.FLUSH)
        self._settle_all(job, {Level.PERSISTENT}, failure)

    def _protect(self, job: Job) -> None:
        """Copies and parity, one after the other: both use the same network links."""
        for level in REDUNDANT_LEVELS:
            if level in job.due:
                job.pending.note_level(level, RUNNING)
                outcome = self._timed(job, level, partial(self._protect_at, job, level))
                self._finish_level(job, level, outcome)

    def _protect_at(self, job: Job, level: str) -> list[Path]:
        channel, summary = self._channels[level], job.local_summary
        assert summary is not None  # the local level of the job is complete
        drive = partial(self._drive, channel, what=f"step {job.attempt.step}, exchange of level {level}")
        paths = self._protector.protect(job.attempt, summary, level, channel, drive)
        written = sum(access.lstat(path).st_size for path in paths)
        job.pending.note_level(level, RUNNING, nbytes=written)
        return paths

    def _drive(self, channel: Comm, operation: Operation[T], what: str) -> T:
        return finish(channel, operation, what, self.timeout, background=True)

    def _give_up_protecting(self, job: Job, failure: DeeppartError) -> None:
        self._settle_all(job, {*REDUNDANT_LEVELS}, failure)

    def _repair(self, repair: Repair) -> None:
        """Heal redundancy; errors are reported at the next call."""
        channel = next(self._channels[level] for level in (*REDUNDANT_LEVELS, Level.LOCAL) if level in self._channels)
        try:
            repair.run(channel, partial(self._drive, channel, what=repair.what))
        except BaseException as error:
            text = f"{repair.what} failed: {as_error(error, 'background work failed')}"
            self.call_notes.note(text, BackgroundFailureWarning)
        finally:
            self._end_repair(repair)

    def _end_repair(self, repair: Repair) -> None:
        with self._changed:
            if repair not in self._repairs:
                return
            self._repairs.remove(repair)
            self._changed.notify_all()
        self.call_notes.release(repair.attempt)

    def _break(self, thread: str, error: BaseException) -> None:
        """An error has ended a thread: fail everything that waits for its work."""
        self.failure = self.failure or CheckpointError(
            "nothing is saved any more by this checkpointer: an error has ended one of its threads",
            found=f"{type(error).__name__}: {error}",
            where=f"rank {self._storage.rank}, thread {thread}",
            todo="close it and make another, or start the job again; complete checkpoints are not affected",
        )
        for channel in self._channels.values():
            channel.abandon(CommError(f"an error has ended the thread {thread}"))
        self._fail_all_if_broken()

    def _fail_all_if_broken(self) -> None:
        """Fail what is in flight if an error has ended a thread."""
        if self.failure is None:
            return
        with self._changed:
            jobs, repairs = list(self._in_flight), list(self._repairs)
        for job in jobs:
            _resolve(job, Opened(self.failure))
            self._fail(job, job.due, self.failure)
        for repair in repairs:
            self._end_repair(repair)

    # --- shared by the stages ---

    def _timed(self, job: Job, level: str, work: Callable[[], T]) -> T | DeeppartError:
        """Do a level's work; an error is its outcome, for the other ranks to receive in the commit round."""
        began = time.monotonic()
        outcome = self._attempted(level, work)
        job.pending.note_stage(level, time.monotonic() - began)
        return outcome

    def _attempted(self, level: str, work: Callable[[], T]) -> T | DeeppartError:
        try:
            return work()
        except Exception as error:
            return as_error(error, f"level {level} failed")

    def _finish_level(self, job: Job, level: str, outcome: Outcome) -> bool:
        """End a level on all ranks; returns whether it is complete."""
        complete = self._complete(job, level, outcome)
        self._settle(job, level)
        return complete

    def _complete(self, job: Job, level: str, outcome: Outcome) -> bool:
        """The commit round of a level; returns whether the level is complete, the same on every rank."""
        report = self._report(job, outcome)
        failed = isinstance(report, str) or isinstance(outcome, DeeppartError)
        channel = self._channels[level]
        job.progress.report(level)
        what = f"step {job.attempt.step}, completing level {level}"
        commit = partial(self._writer.commit, job) if level == Level.PERSISTENT else None
        agreed, begun = True, channel.broken is None
        try:
            round_ = commit_round(channel, str(job.attempt.key), report, commit)
            verdict = finish(channel, round_, what, self.timeout, background=True)
        except DeeppartError as error:  # rank 0 may have committed the step, or may still do so, if it has this report
            verdict, agreed = RoundResult(str(error), may_stand=begun and not failed), False
        complete = verdict.problem is None and not failed
        if complete:
            self._remember(job, level, outcome)  # first: a caller that waits for the level may save again at once
            job.pending.note_level(level, DONE)
            if level != Level.PERSISTENT and job.is_on_nodes():
                self.call_notes.completed(job.attempt)  # before the steps that it replaces are retired
            may_go = partial(self._not_needed, job, level)
            retire = partial(self._retention.committed, level, job.attempt.key, may_go)
            report_refusals(job, level, self.call_notes, retire)
        else:
            if level == Level.PERSISTENT and verdict.may_stand:
                self._incremental.in_doubt()
            # Before the step can be used again; and at once, because it may have failed for lack of space.
            if not verdict.may_stand:
                self._discard(job, level, outcome)
            if level == Level.PERSISTENT:  # where the manifest decides
                self._keeping.abandon(job.attempt.key)
            else:
                self._retention.abandon(level, job.attempt.key, in_doubt=verdict.may_stand)
            failure = level_error(job, level, verdict.problem or str(outcome), is_over=channel.broken is not None)
            failure = on_ranks(failure, self._storage.rank) if agreed else failure
            job.pending.note_level(level, FAILED, error=failure, agreed=agreed)
        return complete

    def _report(self, job: Job, outcome: Outcome) -> PartRecord | str | None:
        """This rank's report to the others: its part, or a text if it has failed."""
        if isinstance(outcome, RemoteRankError):
            return None  # the rank with the part reports it
        if isinstance(outcome, DeeppartError):
            return str(outcome)
        try:
            if isinstance(outcome, PartSummary):
                return outcome.record(job.attempt, self._storage.rank, job.local_summary)
            return None
        except Exception as error:  # of any type: the other ranks wait for the report
            return str(as_error(error, "the part that was written could not be recorded"))

    def _discard(self, job: Job, level: str, outcome: Outcome) -> None:
        """Remove the files that this rank has written at a level that is not complete, as far as possible."""
        if level not in REDUNDANT_LEVELS:
            self._storage.discard_part(level, job.attempt)
        elif isinstance(outcome, list):
            remove_files(outcome)

    def _remember(self, job: Job, level: str, outcome: Outcome) -> None:
        """Remember the chunks to which the next checkpoint may refer; none if memory is short."""
        if level != Level.PERSISTENT or not isinstance(outcome, PartSummary):
            return
        try:
            self._incremental.completed(job.attempt, outcome)
        except Exception:  # the level is complete nevertheless
            self._incremental.in_doubt()

    def _settle_all(self, job: Job, levels: set[str], failure: DeeppartError) -> None:
        """Settle the levels that a stage has not finished, after an error between its steps."""
        has_local = not job.progress.unreported({Level.LOCAL} & job.due)
        for level in sorted(job.progress.unreported(levels & job.due)):
            self._finish_level(job, level, failure)
        for level in levels & job.due & {*REDUNDANT_LEVELS}:
            if has_local and not job.pending.settled(level):  # the other ranks are in its exchange, or wait for it
                self._channels[level].abandon(CommError(failure.summary))
        self._fail(job, levels & job.due, failure)

    def _fail(self, job: Job, levels: Iterable[str], error: DeeppartError) -> None:
        for level in levels:
            if not job.pending.settled(level):
                job.pending.note_level(level, FAILED, error=level_error(job, level, str(error)))
            self._settle(job, level)

    def _not_needed(self, job: Job, level: str, keys: set[StepKey]) -> set[StepKey]:
        """The steps whose files on nodes may go when a level of a job is complete: neither in flight nor held."""
        with self._changed:
            in_flight = list(self._in_flight)
        others = [other for other in in_flight if other.progress.needs(level if other is job else None)]
        return self.call_notes.retire(keys.difference(other.attempt.key for other in others))

    def _settle(self, job: Job, level: str) -> None:
        """A level of a job has ended; the job leaves the pipeline with its last one."""
        if not job.progress.settle(level):
            return
        job.lease.done(Reader.STORE, Reader.FLUSH)
        if job.local is not None:
            job.local.close()
        with self._changed:
            if job in self._in_flight:
                self._in_flight.remove(job)
            self._changed.notify_all()


def level_error(job: Job, level: str, problem: str, *, is_over: bool = False) -> CheckpointError:
    """The error for a level of a step that is not complete; ``is_over``: the level fails until the session ends."""
    next_one = "this level fails until a new Checkpointer is opened" if is_over else "the next checkpoint tries again"
    return CheckpointError(
        f"step {job.attempt.step} is not complete at level {level!r}",
        found=problem.replace("\n", "\n    "),
        where=f"step {job.attempt.step}, level {level}",
        todo=f"fix the cause; training goes on, earlier checkpoints stay, {next_one}",
    )


def _resolve(job: Job, opened: Opened) -> None:
    with contextlib.suppress(InvalidStateError):  # resolved already, by _break
        job.opened.set_result(opened)


class Capturer:
    """Completes the captures of one rank, one after the other, and blocks optimizers meanwhile."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._listening = True
        REGISTRY.listen(self)

    def begin(self, job: Job) -> None:
        """Add a checkpoint whose capture may be incomplete; called by the training thread."""
        self._job = job

    def complete(self, job: Job) -> DeeppartError | None:
        """Make the deferred copies; returns their error, or None."""
        if job.deferred is None:
            return None
        began = time.monotonic()
        failure = job.deferred.wait()
        if not job.deferred.done:
            job.lease.keep(Reader.CAPTURE)  # a copy that does not end may still write to the staging memory
        job.pending.note_stage("deferred", time.monotonic() - began)
        return failure

    def before_step(self, optimizer: object) -> None:
        """Wait for the copies, which an optimizer is about to change."""
        job = self._job
        if job is None or job.deferred is None:
            return
        waits = not job.deferred.done
        job.deferred.hold()
        if waits:
            job.pending.note(held_s=job.deferred.held_s)
        self._job = None

    def after_step(self, optimizer: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Stop blocking optimizers."""
        if self._listening:
            self._listening = False
            REGISTRY.unlisten(self)
