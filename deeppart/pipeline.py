"""The background of a save: store, protect, drain, commit, retire.

Three or more threads per rank. *store* writes the staged share to the local level, *drain* to the persistent one,
bandwidth-capped (:mod:`deeppart.writing`), with *behind* for the writing itself; *protect* exchanges copies and parity
with other nodes once the local level is complete (:mod:`deeppart.protecting`). Each level ends in a *commit round*:
every rank reports to rank 0, which commits if all succeeded and tells everyone the outcome.

Invariants
----------
* A failure never leaves a thread: it becomes the level's outcome, on every rank, and the next checkpoint goes on.
* Staging memory is free again once the share is complete in a file.
* Rounds of one level happen in the same order on every rank, on a channel of their own.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from deeppart import access
from deeppart.capturing import Capturer
from deeppart.comm.base import Comm
from deeppart.completing import Completer, Outcome, level_error
from deeppart.compressing import Compressing, Processors
from deeppart.driving import Driver
from deeppart.errors import BackgroundFailureWarning, CheckpointError, CommError, DeeppartError, as_error
from deeppart.incremental import Incremental
from deeppart.ledger import Ledger
from deeppart.levels.files import DurableFile
from deeppart.levels.node import NodeLevel
from deeppart.levels.persistent import DirectoryOwner, PersistentLevel
from deeppart.levels.transfer import Staged
from deeppart.levels.workers import Workers
from deeppart.model import MOST_IN_FLIGHT, REDUNDANT_LEVELS, Attempt, StepKey
from deeppart.part import PartSummary, parse_base_file_name
from deeppart.pending import FAILED, RUNNING
from deeppart.protecting import Protector
from deeppart.retention import Retention
from deeppart.writing import Job, ShareWriter

T = TypeVar("T")
#: Background threads run at this much lower priority than training (Linux niceness).
NICENESS = 10


@dataclass(slots=True, eq=False)
class Repair:
    """Redundancy to rebuild.

    Attributes:
        attempt: whose; it is not retired meanwhile.
        what: for messages.
        run: does it: given a channel, what drives operations on it, and what gives the staging memory back.
        needs_staging: whether it begins with parts that lie there.
    """

    attempt: Attempt
    what: str
    run: Callable[[Comm, Callable[..., Any], Callable[[], None]], None]
    needs_staging: bool


class Pipeline:
    """The background threads of one rank.

    Args:
        channels: level name -> channel for its exchanges, for the levels that are on.
        rank: this rank.
        local: the local level, or None without one.
        persistent: the persistent level.
        owner: the directory's lock, on rank 0.
        compression: the setting.
        processors: what there is to encode chunks with.
        incremental: knows which chunks need not be written.
        retention: removes what is no longer kept.
        protector: does the redundant levels.
        timeout: seconds to wait for other ranks, from the last time they got further.
        lazy: whether shares may arrive with copies that are still to be made.
    """

    def __init__(
        self,
        channels: dict[str, Comm],
        rank: int,
        local: NodeLevel | None,
        persistent: PersistentLevel,
        owner: DirectoryOwner | None,
        compression: str,
        processors: Processors,
        incremental: Incremental,
        retention: Retention,
        protector: Protector,
        timeout: float,
        *,
        lazy: bool = False,
    ) -> None:
        self._channels = channels
        self._compressing = Compressing(compression, processors, _lower_priority, persistent.signing)
        self._behind = Workers(1, "deeppart-behind", _lower_priority)
        self._writer = ShareWriter(
            local, persistent, self._compressing, incremental, rank, self._behind, self._claim_staging
        )
        self._protector = protector
        self._to_capture: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_store: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_drain: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_protect: queue.SimpleQueue[Job | Repair | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._staging_free = True
        self._in_flight: list[Job] = []
        self._repairs: list[Repair] = []
        self.ledger, self.driver = Ledger(), Driver(timeout)
        self._completer = Completer(
            channels, rank, local, persistent, owner, incremental, retention, self.driver, self.ledger, self._retire
        )
        work: list[tuple[str, queue.SimpleQueue[Any], Callable[[Job], None]]] = [
            ("store", self._to_store, self._store),
            ("drain", self._to_drain, self._drain),
        ]
        self._capturer = Capturer() if lazy else None
        self._first = self._to_capture if lazy else self._to_store
        if lazy:
            work.append(("capture", self._to_capture, self._capture))
        if any(level in channels for level in REDUNDANT_LEVELS):
            work.append(("protect", self._to_protect, self._protect))
        self._threads = [
            threading.Thread(target=self._run, args=(jobs, each), name=f"deeppart-{name}", daemon=True)
            for name, jobs, each in work
        ]
        for thread in self._threads:
            thread.start()

    # --- called by the training thread ---

    @property
    def working(self) -> bool:
        """Whether a checkpoint is being stored, protected or drained."""
        return bool(self._in_flight)

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
        if self._capturer is not None:
            self._capturer.begin(job)
        self._first.put(job)

    def submit_repair(self, repair: Repair) -> None:
        """Take over the rebuilding of redundancy; if it needs the staging memory, that is the pipeline's until then."""
        self._staging_free = self._staging_free and not repair.needs_staging
        self._repairs.append(repair)
        self.ledger.hold(repair.attempt)
        self._to_protect.put(repair)

    @property
    def repairing(self) -> bool:
        """Whether redundancy is being rebuilt."""
        return bool(self._repairs)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._in_flight and not self._repairs

    def poll(self, patience_s: float = 0.0) -> None:
        """Advance exchanges that must happen in the training thread; see :class:`deeppart.driving.Driver`."""
        self.driver.poll(patience_s)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight; False if that took longer than ``timeout`` seconds."""
        return self._wait_until(lambda: self.idle, timeout)

    def close(self, timeout: float) -> None:
        """End the threads; what is queued is finished first as far as ``timeout`` seconds allow."""
        if not self.drain(timeout):
            for channel in self._channels.values():  # ends the waits of our own threads
                channel.broken = channel.broken or CommError("the checkpointer was closed before this was finished")
        if self._capturer is not None:
            self._capturer.close()
        self._first.put(None)
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

    def _run(self, jobs: queue.SimpleQueue[Any], work: Callable[[Job], None]) -> None:
        _lower_priority()
        while (job := jobs.get()) is not None:
            if isinstance(job, Repair):
                self._repair(job)
                continue
            try:
                work(job)
            except Exception as error:  # a bug of ours must not end the thread: the other ranks wait for its rounds
                self._give_up(job, jobs, as_error(error, "background work failed"))
        if jobs is self._to_capture:
            self._to_store.put(None)
        if jobs is self._to_store:  # not before: a checkpoint still being stored is drained too, or it would never end
            self._to_drain.put(None)
            self._to_protect.put(None)
        if jobs is self._to_drain:  # the last that needs these
            self._compressing.close()
            self._behind.close()

    def _give_up(self, job: Job, jobs: queue.SimpleQueue[Any], failure: DeeppartError) -> None:
        """Settle what a thread leaves undone of a job, where an error has come from between its steps."""
        mine = {self._to_drain: {"persistent"}, self._to_protect: {*REDUNDANT_LEVELS}}
        levels = job.due & mine.get(jobs, {"local", *REDUNDANT_LEVELS})
        if jobs is self._to_drain:
            self._done_with_staging(job, "drain")
        elif jobs is not self._to_protect:
            if job.relay is not None:  # the drain does not wait for the local file
                job.relay.end(complete=False)
            self._done_with_staging(job, "store")
            if not job.passed_on:  # it takes part in its own round all the same
                job.failure = failure
                self._pass_on(job)
        for level in levels - {*REDUNDANT_LEVELS} - job.reported:
            self._finish_level(job, level, failure)
        self._fail(job, levels, failure)

    def _capture(self, job: Job) -> None:
        assert self._capturer is not None
        try:
            self._capturer.complete(job)
        except Exception as error:  # it is told in the commit rounds, for which the other ranks wait
            job.failure = as_error(error, "the capture in the background failed")
        self._to_store.put(job)

    def _store(self, job: Job) -> None:
        outcome: PartSummary | DeeppartError | None = None
        try:
            self._writer.look(job)
        except Exception as error:  # likewise
            job.failure = as_error(error, "the captured share could not be read")
        if "local" in job.due:
            job.pending.note_level("local", RUNNING)
            file = self._attempted("local", lambda: self._writer.open_local(job))
            self._pass_on(job)
            outcome = file if isinstance(file, DeeppartError) else self._write_local(job, file)
        else:
            self._pass_on(job)
        self._done_with_staging(job, "store", stored=isinstance(outcome, PartSummary))
        if outcome is not None:
            redundant = job.due & {*REDUNDANT_LEVELS}
            complete = self._finish_level(job, "local", outcome)
            if redundant and complete:
                self._to_protect.put(job)
            elif redundant:
                self._fail(job, redundant, CheckpointError("the local level, whose parts it protects, is not complete"))

    def _repair(self, repair: Repair) -> None:
        """Rebuild redundancy; what goes wrong is told at the next call."""
        channel = next(self._channels[level] for level in REDUNDANT_LEVELS if level in self._channels)
        try:
            repair.run(channel, partial(self.driver.drive, channel, what=repair.what), partial(self._release, repair))
        except Exception as error:
            text = f"{repair.what} failed: {as_error(error, 'background work failed')}"
            self.ledger.note(text, BackgroundFailureWarning)
        finally:
            self._release(repair)
            self.ledger.release(repair.attempt)
            with self._room:
                self._repairs.remove(repair)
                self._room.notify_all()

    def _release(self, repair: Repair) -> None:
        """The staging memory is free again, if it was taken for this."""
        with self._room:
            if repair.needs_staging:
                repair.needs_staging = False
                self._staging_free = True
                self._room.notify_all()

    def _protect(self, job: Job) -> None:
        """Copies and parity, one after the other: both use the same links."""
        for level in REDUNDANT_LEVELS:
            if level in job.due:
                job.pending.note_level(level, RUNNING)
                outcome = self._timed(job, level, partial(self._protect_at, job, level))
                self._finish_level(job, level, outcome)

    def _protect_at(self, job: Job, level: str) -> list[Path]:
        channel, what = self._channels[level], f"step {job.attempt.step}, exchange of level {level}"
        paths = self._protector.protect(job, level, channel, lambda each: self.driver.drive(channel, each, what))
        written = sum(access.look(path).st_size for path in paths if parse_base_file_name(path.name) is None)
        job.pending.note_level(level, RUNNING, nbytes=written)
        return paths

    def _write_local(self, job: Job, file: DurableFile) -> PartSummary | DeeppartError:
        assert job.relay is not None
        outcome = self._timed(job, "local", lambda: self._writer.write_local(job, file))
        job.relay.end(complete=False)  # only matters if it has not been completed
        return outcome

    def _pass_on(self, job: Job) -> None:
        """From here on the drain may follow."""
        job.passed_on = True
        if "persistent" in job.due:
            self._to_drain.put(job)

    def _drain(self, job: Job) -> None:
        job.pending.note_level("persistent", RUNNING)
        outcome = self._timed(job, "persistent", lambda: self._writer.write_persistent(job))
        self._done_with_staging(job, "drain")
        self._finish_level(job, "persistent", outcome)

    def _timed(self, job: Job, level: str, work: Callable[[], T]) -> T | DeeppartError:
        """Do a level's own work; whatever goes wrong is its outcome, for the commit round to tell the other ranks."""
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
        complete = self._completer.complete(job, level, outcome)
        self._settle(job, level)
        return complete

    def _retire(self, job: Job, level: str, keys: set[StepKey]) -> set[StepKey]:
        """Those of the steps whose files on nodes may go when a level of a job is complete: not in work, nor in use."""
        others = [other for other in list(self._in_flight) if other is not job or job.open_levels != {level}]
        return self.ledger.retire(keys.difference(other.attempt.key for other in others))

    def _fail(self, job: Job, levels: Iterable[str], error: DeeppartError) -> None:
        for level in levels:
            if not job.pending.settled(level):
                job.pending.note_level(level, FAILED, error=level_error(job, level, str(error)))
            self._settle(job, level)

    def _claim_staging(self, job: Job) -> Staged | None:
        """Keep the staging memory for the drain, if it is still there: the store may be about to give it back."""
        with self._room:
            job.claimed = job.staged is not None
            return job.staged

    def _done_with_staging(self, job: Job, *readers: str, stored: bool = False) -> None:
        """These need the share in memory no more; nor does the drain, if it is ``stored`` and not claimed."""
        with self._room:
            job.readers.difference_update(readers)
            if stored and not job.claimed:
                job.readers.discard("drain")
            if job.staged is not None and not job.readers:
                job.staged = None
                self._staging_free = True
                self._room.notify_all()

    def _settle(self, job: Job, level: str) -> None:
        """A level of a job is over; the job leaves with its last one."""
        with self._room:
            job.open_levels.discard(level)
            over = not job.open_levels
        if over:
            self._done_with_staging(job, "store", "drain")
            if job.relay is not None:
                job.relay.close()
            with self._room:
                if job in self._in_flight:
                    self._in_flight.remove(job)
                self._room.notify_all()


def _lower_priority() -> None:
    """Niceness is per thread on Linux; elsewhere threads stay as they are."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except (OSError, AttributeError):
        pass
