"""The background of a save: encode and store, drain, commit, retire.

Two threads per rank. *store* writes the staged share to the local level; *drain* follows that file as it grows and
copies it to the persistent level, bandwidth-capped. Without a local level, or when it fails, *drain* writes from
staging memory. Each level ends in a *commit round*: every rank reports to rank 0, which commits if all succeeded and
tells everyone the outcome.

Invariants
----------
* A level of a step is complete on all ranks or on none; an error on one rank is an error of the level everywhere.
* A failure never leaves a thread: it becomes the level's outcome, on every rank, and the next checkpoint goes on.
* Staging memory is free again once the share is complete in a file.
* Rounds of one level happen in the same order on every rank, on a channel of their own.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from deeppart.codec import Chooser
from deeppart.comm.base import Comm, Operation, finish
from deeppart.commit import Commit, ForegroundRound, commit_round
from deeppart.errors import (
    CheckpointError,
    CommError,
    CorruptFileError,
    DeeppartError,
    StorageError,
)
from deeppart.levels.files import DurableFile
from deeppart.levels.local import LocalLevel
from deeppart.levels.persistent import DirectoryOwner, PersistentLevel, now
from deeppart.levels.relay import Relay, SourceLostError
from deeppart.levels.transfer import Staged, check_copy, copy_part, write_part
from deeppart.model import Attempt, Manifest, PartRecord
from deeppart.part import PartSummary
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.retention import Retention
from deeppart.state.document import PartDocument
from deeppart.version import LIBRARY

#: Checkpoints that may be in the pipeline at once: one being drained, one being stored or waiting to be drained.
MOST_IN_FLIGHT = 2
#: Errors that network file systems and devices get over; the persistent part is then written again after these pauses.
PASSING_ERRORS = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNRESET,
        errno.EREMOTEIO,
    }
)
RETRY_PAUSES_S = (0.2, 1.0)
#: How often a background thread looks whether the round that the training thread advances for it has been given up.
_LOOK_S = 0.1
#: Background threads run at this much lower priority than training (Linux niceness).
NICENESS = 10


@dataclass(slots=True)
class Job:
    """One checkpoint in the pipeline of one rank.

    Attributes:
        attempt: which checkpoint.
        due: levels it goes to.
        staged: the share in staging memory, while it is there; never if it could not be captured.
        pending: where progress is reported.
        failure: why the share could not be captured, or None.
        document: the captured share's document; outlives ``staged``.
        relay: the local part file, which the drain follows; None without one.
        summary: of the part file, once there is a complete one.
        passed_on: the store has handed it to the drain, which settles the persistent level from then on.
        claimed: the drain writes from staging memory: only it may give the memory back.
        open_levels: levels that are not settled yet.
    """

    attempt: Attempt
    due: frozenset[str]
    staged: Staged | None
    pending: Pending
    failure: DeeppartError | None = None
    document: PartDocument | None = None
    relay: Relay | None = None
    summary: PartSummary | None = None
    passed_on: bool = False
    claimed: bool = False
    open_levels: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open_levels = set(self.due)
        if self.staged is not None:
            self.document = self.staged.document


class Pipeline:
    """The background threads of one rank.

    Args:
        channels: level name -> channel for its commit rounds.
        local: the local level, or None without one.
        persistent: the persistent level.
        owner: the directory's lock, on rank 0.
        chooser: encodes chunks.
        retention: removes what is no longer kept.
        timeout: seconds to wait for other ranks in a commit round.
    """

    def __init__(
        self,
        channels: dict[str, Comm],
        local: LocalLevel | None,
        persistent: PersistentLevel,
        owner: DirectoryOwner | None,
        chooser: Chooser,
        retention: Retention,
        timeout: float,
    ) -> None:
        self._channels = channels
        self._local, self._persistent, self._owner = local, persistent, owner
        self._chooser = chooser
        self._retention = retention
        self._timeout = timeout
        self._rank = channels["persistent"].rank
        self._to_store: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_drain: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._staging_free = True
        self._in_flight: list[Job] = []
        self._rounds: deque[ForegroundRound] = deque()
        self._threads = [
            threading.Thread(target=self._run, args=(self._to_store, self._store), name="deeppart-store", daemon=True),
            threading.Thread(target=self._run, args=(self._to_drain, self._drain), name="deeppart-drain", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- called by the training thread ---

    def has_room(self) -> bool:
        """Whether a checkpoint could be submitted now."""
        return self._staging_free and len(self._in_flight) < MOST_IN_FLIGHT

    def wait_for_room(self, timeout: float) -> bool:
        """Wait for room; False if there was none in time."""
        return self._wait_until(self.has_room, timeout)

    def submit(self, job: Job) -> None:
        """Take over a checkpoint; its staging memory belongs to the pipeline until it is free again."""
        self._staging_free = job.staged is None
        self._in_flight.append(job)
        self._to_store.put(job)

    def poll(self, patience_s: float = 0.0) -> None:
        """Advance commit rounds that must happen in the training thread (no MPI_THREAD_MULTIPLE).

        Args:
            patience_s: seconds to go on while there are any: a round takes several exchanges.
        """
        deadline = time.monotonic() + patience_s
        while self._rounds:
            for waiting in list(self._rounds):
                if waiting.advance():
                    self._rounds.remove(waiting)
            if time.monotonic() >= deadline:
                return
            time.sleep(0)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight; False if that took longer than ``timeout`` seconds."""
        return self._wait_until(lambda: not self._in_flight, timeout)

    def close(self, timeout: float) -> None:
        """End the threads; what is queued is finished first as far as ``timeout`` seconds allow."""
        if not self.drain(timeout):
            for channel in self._channels.values():  # ends the waits of our own threads
                channel.broken = channel.broken or CommError("the checkpointer was closed before this was finished")
        self._to_store.put(None)
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not condition():
            self.poll()
            with self._room:
                if not condition():
                    self._room.wait(0.005)
            if time.monotonic() > deadline:
                return condition()
        return True

    # --- the threads ---

    def _run(self, jobs: queue.SimpleQueue[Job | None], work: Callable[[Job], None]) -> None:
        _lower_priority()
        while (job := jobs.get()) is not None:
            try:
                work(job)
            except Exception as error:  # a bug of ours must not end the thread: the other ranks wait for its rounds
                mine = {"persistent"} if jobs is self._to_drain or not job.passed_on else set()
                mine |= {"local"} if jobs is self._to_store else set()
                self._fail(job, job.due & mine, _as_error(error, "background work failed"))
        if jobs is self._to_store:  # not before: a checkpoint still being stored is drained too, or it would never end
            self._to_drain.put(None)

    def _store(self, job: Job) -> None:
        outcome: PartSummary | DeeppartError | None = None
        if "local" in job.due:
            job.pending.note_level("local", RUNNING)
            file, outcome = self._open_local(job)
            self._pass_on(job)
            if file is not None and job.relay is not None:
                outcome = self._timed(job, "local", lambda: self._write_local(job, file))
                job.relay.end(complete=False)  # only matters if it has not been completed
        else:
            self._pass_on(job)
        if "persistent" not in job.due or isinstance(outcome, PartSummary):
            self._free_staging(job)
        if outcome is not None:
            self._finish_level(job, "local", outcome, None)

    def _pass_on(self, job: Job) -> None:
        """From here on the drain may follow."""
        job.passed_on = True
        if "persistent" in job.due:
            self._to_drain.put(job)

    def _open_local(self, job: Job) -> tuple[DurableFile | None, PartSummary | DeeppartError]:
        """Begin the local part file and its relay, or say why not."""
        assert self._local is not None
        if job.failure is not None:
            return None, job.failure
        file: DurableFile | None = None
        try:
            file = self._local.open_part(job.attempt, self._rank)
            job.relay = Relay(file)
        except Exception as error:
            if file is not None:
                file.abort()
            return None, _as_error(error, "level local failed")
        return file, CheckpointError("level local was not written")

    def _write_local(self, job: Job, file: DurableFile) -> PartSummary:
        assert job.staged is not None and job.relay is not None
        try:
            job.summary = write_part(job.staged, job.relay, self._chooser, job.attempt, self._rank)
            job.relay.end(complete=True)
            file.commit()
        except BaseException:
            file.abort()
            raise
        job.pending.note_cost(encoded_bytes=job.summary.encoded_bytes)
        job.pending.note_level("local", RUNNING, nbytes=job.summary.nbytes)
        return job.summary

    def _drain(self, job: Job) -> None:
        job.pending.note_level("persistent", RUNNING)
        outcome = self._timed(job, "persistent", lambda: self._write_persistent(job))
        self._free_staging(job, claimed=True)
        self._finish_level(job, "persistent", outcome, lambda parts: self._commit(job, parts))

    def _write_persistent(self, job: Job) -> PartSummary:
        """Copy the local part, or write from staging memory; again after an error that may pass."""
        if job.failure is not None:
            raise job.failure
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                return self._write_persistent_once(job)
            except StorageError as error:
                if pause_s is None or error.errno not in PASSING_ERRORS:
                    raise
                job.pending.note_retry()
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _write_persistent_once(self, job: Job) -> PartSummary:
        file = self._persistent.open_part(job.attempt, self._rank)
        try:
            summary = self._fill(job, file)
            file.commit()
        except BaseException:
            file.abort()
            raise
        job.pending.note_cost(encoded_bytes=summary.encoded_bytes)
        job.pending.note_level("persistent", RUNNING, nbytes=summary.nbytes)
        return summary

    def _fill(self, job: Job, file: DurableFile) -> PartSummary:
        """From the local part if that works out, otherwise from staging memory if it is still there."""
        if job.relay is not None:
            try:
                found = copy_part(job.relay, file)
                assert job.summary is not None
                check_copy(found, job.summary, str(self._local and self._local.part_path(job.attempt, self._rank)))
                return job.summary
            except (SourceLostError, CorruptFileError):
                if self._claim_staging(job) is None:
                    raise
                job.relay.close()  # a file that was given up takes space as long as someone has it open
                file.restart()
        staged = self._claim_staging(job)
        if staged is None:
            raise CheckpointError("the share is neither in staging memory nor in a local part")
        return write_part(staged, file, self._chooser, job.attempt, self._rank)

    def _timed(self, job: Job, level: str, work: Callable[[], PartSummary]) -> PartSummary | DeeppartError:
        """Do a level's own work; whatever goes wrong is its outcome, for the commit round to tell the other ranks."""
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            return _as_error(error, f"level {level} failed")
        finally:
            job.pending.note_stage(level, time.monotonic() - began)

    def _finish_level(self, job: Job, level: str, outcome: PartSummary | DeeppartError, commit: Commit | None) -> None:
        """The commit round of a level; afterwards every rank knows the same outcome."""
        failed = isinstance(outcome, DeeppartError)
        report = str(outcome) if isinstance(outcome, DeeppartError) else outcome.record(job.attempt, self._rank)
        channel = self._channels[level]
        what = f"step {job.attempt.step}, completing level {level}"
        known = True
        try:
            problem = self._exchange(channel, commit_round(channel, report, commit), what)
        except DeeppartError as error:
            problem, known = str(error), failed
        if problem is not None or failed:
            # Before the step is free to be used again; and at once, because it may be for lack of space that it failed.
            # Not where the outcome is unknown: rank 0 may have committed the step, or be about to.
            storage = self._local if level == "local" and self._local is not None else self._persistent
            part = storage.part_path(job.attempt, self._rank) if known else None
            self._retention.abandon(level, job.attempt.step, part)
            job.pending.note_level(level, FAILED, error=_level_error(job, level, problem or str(outcome)))
        else:
            job.pending.note_level(level, DONE)
            self._retire(job, level)
        self._settle(job, level)

    def _exchange(self, channel: Comm, operation: Operation[str | None], what: str) -> str | None:
        if channel.threads:
            return finish(channel, operation, what, self._timeout, background=True)
        waiting = ForegroundRound(channel, operation, what, self._timeout)
        self._rounds.append(waiting)
        while not waiting.finished.wait(_LOOK_S):
            if channel.broken is not None:  # closed: nobody will advance it any more
                waiting.cancel()
                raise channel.broken
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    def _commit(self, job: Job, parts: list[PartRecord]) -> None:
        """Rank 0: make the step a checkpoint."""
        assert self._owner is not None and job.document is not None
        self._owner.check()
        manifest = Manifest(job.attempt, now(), LIBRARY, tuple(parts), job.document.structure())
        self._persistent.commit(manifest)

    def _retire(self, job: Job, level: str) -> None:
        """Drop what ``keep`` no longer wants. A refusal is reported and does not undo the commit."""
        others = [other for other in list(self._in_flight) if other is not job or job.open_levels != {level}]
        try:
            self._retention.committed(level, job.attempt.step, [other.attempt.step for other in others])
        except (DeeppartError, OSError) as error:
            job.pending.note_cost(retire_error=str(error))

    def _fail(self, job: Job, levels: Iterable[str], error: DeeppartError) -> None:
        for level in levels:
            if not job.pending.settled(level):
                job.pending.note_level(level, FAILED, error=_level_error(job, level, str(error)))
            self._settle(job, level)

    def _claim_staging(self, job: Job) -> Staged | None:
        """Keep the staging memory for the drain, if it is still there: the store may be about to give it back."""
        with self._room:
            job.claimed = job.staged is not None
            return job.staged

    def _free_staging(self, job: Job, *, claimed: bool = False) -> None:
        with self._room:
            if job.staged is not None and (claimed or not job.claimed):
                job.staged = None
                self._staging_free = True
                self._room.notify_all()

    def _settle(self, job: Job, level: str) -> None:
        """A level of a job is over; the job leaves with its last one."""
        with self._room:
            job.open_levels.discard(level)
            over = not job.open_levels
        if over:
            self._free_staging(job, claimed=True)
            if job.relay is not None:
                job.relay.close()
            with self._room:
                if job in self._in_flight:
                    self._in_flight.remove(job)
                self._room.notify_all()


def _as_error(error: Exception, summary: str) -> DeeppartError:
    if isinstance(error, DeeppartError):
        return error
    return CheckpointError(summary, found=f"{type(error).__name__}: {error}")


def _level_error(job: Job, level: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"step {job.attempt.step} is not complete at level {level!r}",
        found=problem.replace("\n", "\n    "),
        where=f"step {job.attempt.step}, level {level}",
        todo="mend the cause; training goes on, earlier checkpoints stay, the next checkpoint tries again",
    )


def _lower_priority() -> None:
    """Niceness is per thread on Linux; elsewhere threads stay as they are."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except (OSError, AttributeError):
        pass
