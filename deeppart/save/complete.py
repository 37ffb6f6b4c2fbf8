"""Ends one level of one checkpoint, on which all ranks agree in a commit round.

Invariants
----------
* A level of a step is complete on all ranks or on none; an error on one rank is an error of the level everywhere. Only
  a rank that gives up waiting in the middle of the round does not know: the manifest decides then.
* Files written at a level that is not complete are removed at once, unless it is unknown whether it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from deeppart._gc import collection_paused
from deeppart.comm import Comm, CommitMayStandError, RoundResult, commit_round, finish
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    DirectoryInUseError,
    RemoteRankError,
    StorageError,
    as_error,
    on_ranks,
)
from deeppart.model import LIBRARY, REDUNDANT_LEVELS, Level, Manifest, PartRecord, StepKey
from deeppart.part import PartSummary, encode_manifest
from deeppart.pending import DONE, FAILED
from deeppart.save.incremental import Incremental
from deeppart.save.job import Job, Outcome
from deeppart.save.keeping import Keeping
from deeppart.save.protect import remove_files
from deeppart.save.retention import CallNotes, Retention, report_refusals
from deeppart.save.write import RankStorage
from deeppart.storage import DirectoryOwner


class Completer:
    """Completes levels, for the threads of one rank."""

    def __init__(
        self,
        channels: Mapping[str, Comm],
        storage: RankStorage,
        incremental: Incremental,
        retention: Retention,
        keeping: Keeping,
        timeout: float,
        call_notes: CallNotes,
        may_go: Callable[[Job, str, set[StepKey]], set[StepKey]],
    ) -> None:
        self._channels, self._storage = channels, storage
        self._incremental, self._retention, self._keeping = incremental, retention, keeping
        self._timeout, self._call_notes, self._may_go = timeout, call_notes, may_go

    def complete(self, job: Job, level: str, outcome: Outcome) -> bool:
        """The commit round of a level; returns whether the level is complete, the same on every rank."""
        report = self._report(job, outcome)
        failed = isinstance(report, str) or isinstance(outcome, DeeppartError)
        channel = self._channels[level]
        job.progress.report(level)
        what = f"step {job.attempt.step}, completing level {level}"
        commit = partial(self._commit, job) if level == Level.PERSISTENT else None
        agreed, begun = True, channel.broken is None
        try:
            round_ = commit_round(channel, str(job.attempt.key), report, commit)
            verdict = finish(channel, round_, what, self._timeout, background=True)
        except DeeppartError as error:  # rank 0 may have committed the step, or may still do so, if it has this report
            verdict, agreed = RoundResult(str(error), may_stand=begun and not failed), False
        complete = verdict.problem is None and not failed
        if complete:
            self._remember(job, level, outcome)  # first: a caller that waits for the level may save again at once
            job.pending.note_level(level, DONE)
            if level != Level.PERSISTENT and job.is_on_nodes():
                self._call_notes.completed(job.attempt)  # before the steps that it replaces are retired
            may_go = partial(self._may_go, job, level)
            retire = partial(self._retention.committed, level, job.attempt.key, may_go)
            report_refusals(job, level, self._call_notes, retire)
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

    def _commit(self, job: Job, parts: list[PartRecord]) -> None:
        """Rank 0: create the manifest.

        If another job took over the directory meanwhile without having seen the commit, the manifest is removed again:
        that job continues from an older step, and must not find this one beside its own later steps.
        """
        owner = self._storage.owner
        assert owner is not None
        owner.check()
        try:
            self._put_manifest(job, parts, owner)
        except Exception as error:
            if self._storage.persistent.may_be_committed(job.attempt.key):
                raise CommitMayStandError("the manifest may be there, and a restart may take the step") from error
            raise

    def _put_manifest(self, job: Job, parts: list[PartRecord], owner: DirectoryOwner) -> None:
        (_, document), persistent = job.description(), self._storage.persistent
        with collection_paused():
            created = owner.clock.now()
            manifest = Manifest(job.attempt, created, LIBRARY, tuple(parts), document.structure(), document.compared)
            data = encode_manifest(manifest, persistent.signing)
        before = self._keeping.removed_count
        try:
            persistent.commit(job.attempt.key, data)
        except StorageError as error:
            if not self._keeping.made_room(error, before):
                raise
            persistent.commit(job.attempt.key, data)
        try:
            owner.check_commit(job.attempt.key)
        except DirectoryInUseError:
            persistent.withdraw(job.attempt.key)
            raise


def level_error(job: Job, level: str, problem: str, *, is_over: bool = False) -> CheckpointError:
    """The error for a level of a step that is not complete; ``is_over``: the level fails until the session ends."""
    next_one = "this level fails until a new Checkpointer is opened" if is_over else "the next checkpoint tries again"
    return CheckpointError(
        f"step {job.attempt.step} is not complete at level {level!r}",
        found=problem.replace("\n", "\n    "),
        where=f"step {job.attempt.step}, level {level}",
        todo=f"fix the cause; training goes on, earlier checkpoints stay, {next_one}",
    )
