"""The background of a save: encode and store, drain, commit, retire.

Two threads per rank. *store* writes the staged share to the local level and frees the staging memory; *drain* copies
the local part file to the persistent level, bandwidth-capped. Each level ends in a *commit round*: every rank reports
to rank 0, which commits if all succeeded and tells everyone the outcome.

Invariants
----------
* A level of a step is complete on all ranks or on none; an error on one rank is an error of the level everywhere.
* A failure never leaves a thread: it becomes the level's outcome, on every rank, and the next checkpoint goes on.
* Nothing is retired at a level before a newer step is committed there, nor a local part that is still being drained.
* Rounds of one level happen in the same order on every rank, on a channel of their own.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deeppart.codec import Chooser
from deeppart.comm.base import Comm, Operation, finish
from deeppart.commit import Commit, ForegroundRound, commit_round
from deeppart.errors import CheckpointError, CommError, DeeppartError, PeerTimeoutError
from deeppart.levels.local import LocalLevel
from deeppart.levels.persistent import DirectoryOwner, PersistentLevel, now
from deeppart.levels.transfer import Staged, copy_part, write_part
from deeppart.model import Attempt, Manifest, PartRecord
from deeppart.part import PartSummary
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.state.document import PartDocument
from deeppart.version import LIBRARY

#: Checkpoints that may be in the pipeline at once: one being drained, one being stored or waiting to be drained.
MOST_IN_FLIGHT = 2
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
        failure: why this rank's share did not get where it was to go last.
        local_path: the finished local part file, if there is one.
        summary: of the part as last written.
        document: the captured share's document; outlives ``staged``.
    """

    attempt: Attempt
    due: frozenset[str]
    staged: Staged | None
    pending: Pending
    failure: DeeppartError | None = None
    local_path: Path | None = None
    summary: PartSummary | None = None
    document: PartDocument | None = None

    def __post_init__(self) -> None:
        if self.staged is not None:
            self.document = self.staged.document


@dataclass(frozen=True, slots=True)
class Settings:
    """What the pipeline needs of the configuration."""

    keep_local: int
    keep_persistent: int
    timeout: float
    leads_directory: bool


class Pipeline:
    """The background threads of one rank.

    Args:
        channels: level name -> channel for its commit rounds.
        local: the local level, or None without one.
        persistent: the persistent level.
        owner: the directory's lock, on rank 0.
        chooser: encodes chunks.
        settings: see :class:`Settings`.
        leftovers: level name -> steps that earlier sessions left there; they go when a newer step is committed.
    """

    def __init__(
        self,
        channels: dict[str, Comm],
        local: LocalLevel | None,
        persistent: PersistentLevel,
        owner: DirectoryOwner | None,
        chooser: Chooser,
        settings: Settings,
        leftovers: dict[str, set[int]],
    ) -> None:
        self._channels = channels
        self._local, self._persistent, self._owner = local, persistent, owner
        self._chooser = chooser
        self._settings = settings
        self._rank = channels["persistent"].rank
        self._to_store: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_drain: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._staging_free = True
        self._in_flight: list[Job] = []
        self._local_steps: list[int] = []
        self._leftovers = {level: set(steps) for level, steps in leftovers.items()}
        self._retiring = threading.Lock()
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

    def protect(self, step: int) -> None:
        """Keep what other ranks write for ``step`` from being retired as an earlier session's leftover.

        Called before the ranks agree on the step, so before any of them can write it.
        """
        if any(step in steps for steps in self._leftovers.values()):
            with self._retiring:
                for steps in self._leftovers.values():
                    steps.discard(step)

    def submit(self, job: Job) -> None:
        """Take over a checkpoint; its staging memory belongs to the pipeline until it is free again."""
        self._staging_free = job.staged is None
        self._in_flight.append(job)
        self._to_store.put(job)

    def poll(self) -> None:
        """Advance commit rounds that must happen in the training thread (no MPI_THREAD_MULTIPLE)."""
        for waiting in list(self._rounds):
            if waiting.advance():
                self._rounds.remove(waiting)

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
                self._fail_all(job, _as_error(error, "background work failed"))
        if jobs is self._to_store:
            self._to_drain.put(
                None
            )  # not before: a checkpoint still being stored is drained too, or it would never end

    def _store(self, job: Job) -> None:
        if "local" in job.due:
            assert self._local is not None
            job.pending.note_level("local", RUNNING)
            self._attempt(job, "local", lambda: self._write(job, "local"))
            if job.failure is None:
                job.local_path = self._local.part_path(job.attempt, self._rank)
            if job.local_path is not None or "persistent" not in job.due:
                self._free_staging(job)
            self._finish_level(job, "local", None)
        if "persistent" in job.due:
            self._to_drain.put(job)
        else:
            self._leave(job)

    def _drain(self, job: Job) -> None:
        job.pending.note_level("persistent", RUNNING)
        if job.staged is not None or job.local_path is not None:
            job.failure = None  # a failed local level does not keep the share from the persistent one
        self._attempt(job, "persistent", lambda: self._write(job, "persistent"))
        self._free_staging(job)
        self._finish_level(job, "persistent", lambda parts: self._commit(job, parts))
        self._leave(job)

    def _attempt(self, job: Job, level: str, work: Callable[[], None]) -> None:
        """Run a level's own work; a failure is kept for the commit round."""
        began = time.monotonic()
        if job.failure is None:
            try:
                work()
            except Exception as error:  # whatever it is, the other ranks hear of it in the commit round
                job.failure = _as_error(error, f"level {level} failed")
        job.pending.note_stage(level, time.monotonic() - began)

    def _write(self, job: Job, level: str) -> None:
        target = self._local if level == "local" else self._persistent
        assert target is not None
        file = target.open_part(job.attempt, self._rank)
        try:
            if level == "persistent" and job.local_path is not None and job.summary is not None:
                copy_part(job.local_path, file, job.summary)
            else:
                assert job.staged is not None
                job.summary = write_part(job.staged, file, self._chooser, job.attempt, self._rank)
            file.commit()
        except BaseException:
            file.abort()
            raise
        job.pending.note_cost(encoded_bytes=job.summary.encoded_bytes)
        job.pending.note_level(level, RUNNING, nbytes=job.summary.nbytes)

    def _finish_level(self, job: Job, level: str, commit: Commit | None) -> None:
        """The commit round of a level; afterwards every rank knows the same outcome."""
        report = _report(job, self._rank)
        channel = self._channels[level]
        what = f"step {job.attempt.step}, completing level {level}"
        try:
            operation = commit_round(channel, report, commit)
            problem = self._exchange(channel, operation, what)
        except DeeppartError as error:
            problem = str(error)
        if problem is not None:
            with self._retiring:  # before the step is free to be used again: see protect()
                self._leftovers[level].add(job.attempt.step)  # what was written of it goes with the next commit
            job.pending.note_level(level, FAILED, error=_level_error(job, level, problem))
            return
        if level == "local":
            self._local_steps.append(job.attempt.step)
        self._retire(job, level)
        job.pending.note_level(level, DONE)

    def _exchange(self, channel: Comm, operation: Operation[str | None], what: str) -> str | None:
        if channel.threads:
            return finish(channel, operation, what, self._settings.timeout, background=True)
        waiting = ForegroundRound(operation)
        self._rounds.append(waiting)
        if not waiting.finished.wait(self._settings.timeout):
            error = PeerTimeoutError(f"{what}: not finished within {self._settings.timeout:g} s")
            channel.broken = error
            raise error
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
        try:
            with self._retiring:
                if level == "persistent" and self._rank == 0:
                    leftovers = self._leftovers["persistent"]
                    self._persistent.retire(self._settings.keep_persistent, set(leftovers), job.attempt.step)
                    leftovers.clear()
                self._retire_local(job, level)
        except (DeeppartError, OSError) as error:
            job.pending.note_cost(retire_error=str(error))

    def _retire_local(self, job: Job, level: str) -> None:
        """Local parts are needed by ``keep`` or by a drain; the directory's first rank removes the others."""
        keep = self._settings.keep_local
        if self._local is None or not self._settings.leads_directory or not keep or not self._local_steps:
            return
        needed = set(self._local_steps[-keep:])
        needed |= {other.attempt.step for other in self._in_flight if other is not job or level == "local"}
        self._local.retire((self._leftovers["local"] | set(self._local_steps)) - needed)
        self._leftovers["local"].clear()
        self._local_steps = [step for step in self._local_steps if step in needed]

    def _fail_all(self, job: Job, error: DeeppartError) -> None:
        for level in job.due:
            if not job.pending.settled(level):
                job.pending.note_level(level, FAILED, error=_level_error(job, level, str(error)))
        self._free_staging(job)
        self._leave(job)

    def _free_staging(self, job: Job) -> None:
        if job.staged is not None:
            job.staged = None
            with self._room:
                self._staging_free = True
                self._room.notify_all()

    def _leave(self, job: Job) -> None:
        self._free_staging(job)
        with self._room:
            if job in self._in_flight:
                self._in_flight.remove(job)
            self._room.notify_all()


def _report(job: Job, rank: int) -> PartRecord | str:
    """What this rank tells rank 0 in a commit round: its part, or what went wrong."""
    if job.failure is not None or job.summary is None:
        return str(job.failure)
    return job.summary.record(job.attempt, rank)


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
