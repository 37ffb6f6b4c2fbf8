"""Combines the status files of a directory: checkpoints in flight, late ranks, and errors of its job.

It only reads files. Whether the job is running is known from the lock on the directory. Pure except for
:func:`look_at_job`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from deeppart._times import seconds_of, timestamp
from deeppart.errors import RestoreError
from deeppart.model import LEVELS, show_seconds
from deeppart.offline.inspect.listing import name_ranks, require_directory
from deeppart.pending import FAILED, RUNNING, WAITING
from deeppart.storage import Owner, read_owner
from deeppart.telemetry import (
    AGAIN_S,
    LONG_S,
    CheckpointStatus,
    ErrorStatus,
    RankStatus,
    Statuses,
    read_statuses,
    sessions_with_status,
)

#: States of a job. UNKNOWN: the file system has no locks. SILENT: the job is running, and has written no status.
RUNNING_JOB, ENDED, FAILED_JOB, DIED, UNKNOWN, SILENT = "running", "ended", "failed", "died", "unknown", "silent"
#: A rank with a checkpoint in flight writes every 10 seconds.
STALE_S = LONG_S + 3 * AGAIN_S


@dataclass(frozen=True, slots=True)
class LevelView:
    """One level, for all ranks with a status file.

    Attributes:
        name: of the level.
        every: n if every n-th checkpoint is stored at it; None with ``every="auto"``.
        step, age_s, seconds: of the last complete checkpoint: its step, time since its completion, and duration.
        nbytes, bytes_per_s: of these ranks together; None if nothing was written.
        done, failed: counts of checkpoints.
    """

    columns: ClassVar = {
        "level": "name",
        "last step": "step",
        "age": "age_s",
        "complete after": "seconds",
        "written": "nbytes",
        "rate": "bytes_per_s",
        "complete": "done",
        "failed": "failed",
    }

    name: str
    every: int | None
    step: int | None
    at: str | None
    age_s: float | None
    seconds: float | None
    nbytes: int
    bytes_per_s: float | None
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class LevelProgress:
    """A level of a checkpoint in flight.

    Attributes:
        name, state: of the level; the state on the rank that is furthest behind.
        late: ranks that have not done their work, if others have.
        error: why the level failed, or None.
    """

    name: str
    state: str
    late: tuple[int, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint in flight, or the last one, by the status files of all ranks.

    Attributes:
        number, step: of the checkpoint.
        began: when ``checkpoint()`` returned on the first rank, UTC, ISO 8601.
        age_s: seconds since then.
        over: true if it is over on all of these ranks.
        blocked_s: longest blocked time of a rank.
        levels: its levels.
        missing: late ranks, which have not begun it long after others have.
        hanging: storage operations that do not return, with the rank.
    """

    number: int
    step: int
    began: str
    age_s: float
    over: bool
    blocked_s: float
    levels: tuple[LevelProgress, ...]
    missing: tuple[int, ...]
    hanging: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """The job of a directory at one moment.

    Attributes:
        directory: as given.
        time: seconds since 1970.
        state: one of the states above.
        owner: of the directory.
        ranks: the status of each rank, in ascending order.
        stale: ranks that have not written for too long.
        levels: the levels in use.
        checkpoints: the last finished checkpoint, and those in flight.
        errors: (rank, error), oldest first; an error of all ranks appears once.
        problems: lines about files that are not used.
    """

    json_also: ClassVar = ("reasons", "blocked")

    directory: str
    time: float
    state: str
    owner: Owner | None
    ranks: tuple[RankStatus, ...]
    stale: tuple[int, ...]
    levels: tuple[LevelView, ...]
    checkpoints: tuple[CheckpointView, ...]
    errors: tuple[tuple[int, ErrorStatus], ...]
    problems: tuple[str, ...]

    @property
    def lead(self) -> RankStatus | None:
        """The status of the lowest rank, whose information about the job is valid for all ranks."""
        return self.ranks[0] if self.ranks else None

    @property
    def good(self) -> bool:
        """True if there is no problem."""
        return not self.reasons

    @property
    def blocked(self) -> Blocked | None:
        """The blocked time; None before the first checkpoint."""
        if not self.checkpoints:
            return None
        worst = max(self.ranks, key=lambda each: _number(each, "checkpoint_blocked_seconds_total"))
        return Blocked(
            int(_number(worst, "checkpoints_total")),
            self.checkpoints[-1].blocked_s,
            _number(worst, "checkpoint_blocked_seconds_total"),
            _number(worst, "checkpoint_blocked_seconds_max"),
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Lines about problems; none if everything is well."""
        return tuple(_reasons(self))


def look_at_job(root: Path, now_s: float) -> JobView:
    """View the last job of a directory."""
    require_directory(root)
    owner = read_owner(root)
    written = sessions_with_status(root)
    if owner is None and not written:
        raise RestoreError(
            "no job has taken this directory",
            where=str(root.absolute()),
            todo="give the persistent_dir of a job that runs, or has run",
        )
    sessions = [owner.session] if owner is not None and owner.session else written
    found = [read_statuses(root, session) for session in sessions if session in written]
    # If the lock file does not have the session, use the one that has written last.
    newest = max(found, key=lambda each: max((status.written for status in each.found), default=""), default=Statuses())
    return put_together(str(root), owner, newest, now_s)


def put_together(directory: str, owner: Owner | None, statuses: Statuses, now_s: float) -> JobView:
    """The same, from what was read."""
    ranks = statuses.found
    state = _state(owner, ranks)
    goes_on = state in (RUNNING_JOB, UNKNOWN)
    stale = tuple(each.rank for each in ranks if goes_on and each.in_flight and age_of(each.written, now_s) > STALE_S)
    on = {name for each in ranks for name in each.metrics.get("level_complete_total", {})}
    levels = tuple(_level(name, ranks, now_s) for name in LEVELS if name in on)
    return JobView(
        directory,
        now_s,
        state,
        owner,
        ranks,
        stale,
        levels,
        tuple(_checkpoints(ranks, now_s)),
        tuple(_errors(ranks)),
        statuses.problems,
    )


def age_of(moment: str, now_s: float) -> float:
    """Seconds since a moment; 0 if it is in the future, or the writer's clock is ahead."""
    return max(0.0, now_s - seconds_of(moment))


@dataclass(frozen=True, slots=True)
class Blocked:
    """Time spent in ``checkpoint()``, on the rank with the largest total.

    Attributes:
        checkpoints: number of finished checkpoints.
        last_s: of the newest checkpoint, finished or not.
        total_s, most_s: sum and maximum of the finished ones.
    """

    json_also: ClassVar = ("mean_s",)

    checkpoints: int
    last_s: float
    total_s: float
    most_s: float

    @property
    def mean_s(self) -> float | None:
        """Mean of the finished checkpoints, or None."""
        return self.total_s / self.checkpoints if self.checkpoints else None


def _number(status: RankStatus, name: str, label: str = "") -> float:
    """A metric; 0 if a status does not have it."""
    return status.metric(name, label) or 0


def _state(owner: Owner | None, ranks: Sequence[RankStatus]) -> str:
    running = None if owner is None else owner.running
    if not ranks:
        return SILENT if running else UNKNOWN if running is None else DIED
    if running:
        return RUNNING_JOB
    if any(each.failed for each in ranks):
        return FAILED_JOB
    if ranks[0].ended is not None:
        return ENDED
    return UNKNOWN if running is None else DIED


def _level(name: str, ranks: Sequence[RankStatus], now_s: float) -> LevelView:
    def of(status: RankStatus, figure: str) -> float:
        return _number(status, f"level_{figure}", name)

    newest = max(ranks, key=lambda each: (of(each, "last_time_seconds"), of(each, "complete_total")))
    step, at_s = newest.metric("level_last_step", name), newest.metric("level_last_time_seconds", name)
    same = [each for each in ranks if each.metric("level_last_step", name) == step]
    written = [(of(each, "last_written_bytes"), of(each, "last_busy_seconds")) for each in same]
    # Summed over ranks, each while it was writing.
    rates = [nbytes / seconds for nbytes, seconds in written if nbytes and seconds > 0]
    return LevelView(
        name=name,
        every=ranks[0].every.get(name),
        step=None if step is None else int(step),
        at=None if at_s is None else timestamp(at_s),
        age_s=None if at_s is None else max(0.0, now_s - at_s),
        seconds=newest.metric("level_last_duration_seconds", name),
        nbytes=int(sum(nbytes for nbytes, _ in written)),
        bytes_per_s=sum(rates) if rates else None,
        done=int(max(of(each, "complete_total") for each in ranks)),
        failed=int(max(of(each, "failed_total") for each in ranks)),
    )


def _checkpoints(ranks: Sequence[RankStatus], now_s: float) -> Iterator[CheckpointView]:
    found: dict[int, dict[int, CheckpointStatus]] = {}
    for status in ranks:
        for each in status.checkpoints:
            found.setdefault(each.number, {})[status.rank] = each
    newest = {status.rank: max((each.number for each in status.checkpoints), default=-1) for status in ranks}
    over = [number for number, known in found.items() if all(each.over for each in known.values())]
    for number in sorted(found):
        if number not in over or number == max(over):
            yield _checkpoint(number, found[number], newest, now_s)


def _checkpoint(
    number: int, known: dict[int, CheckpointStatus], newest: dict[int, int], now_s: float
) -> CheckpointView:
    first = known[min(known)]
    began = min(each.began for each in known.values())
    age_s = age_of(began, now_s)
    missing = tuple(rank for rank, last in newest.items() if last < number) if age_s > STALE_S else ()
    due = [name for name in LEVELS if name in first.report.levels and first.report.levels[name].state != "off"]
    hanging = [f"rank {rank}: {line}" for rank, each in known.items() if not each.over for line in each.report.hanging]
    return CheckpointView(
        number=number,
        step=first.report.step,
        began=began,
        age_s=age_s,
        over=all(each.over for each in known.values()) and not missing,
        blocked_s=max(each.report.blocked_s for each in known.values()),
        levels=tuple(_progress(name, known) for name in due),
        missing=missing,
        hanging=tuple(hanging),
    )


def _progress(name: str, known: dict[int, CheckpointStatus]) -> LevelProgress:
    levels = {rank: each.report.levels[name] for rank, each in known.items() if name in each.report.levels}
    states = {level.state for level in levels.values()}
    state = next((each for each in (FAILED, WAITING, RUNNING) if each in states), min(states))
    done = [rank for rank, each in known.items() if name in each.report.stages_s]
    at_it = [rank for rank, level in levels.items() if level.state in (WAITING, RUNNING)]
    late = [rank for rank in at_it if rank not in done] if done else []
    error = next((level.error for level in levels.values() if level.error), None)
    return LevelProgress(name, state, tuple(late), error)


def _errors(ranks: Sequence[RankStatus]) -> Iterator[tuple[int, ErrorStatus]]:
    """The errors; that of a failed level appears once, since the commit round gives all ranks the same error."""
    seen: set[tuple[int, str, str]] = set()
    for rank, error in sorted(
        ((status.rank, error) for status in ranks for error in status.errors), key=lambda each: (each[1].at, each[0])
    ):
        key = error.step, error.level, error.text
        if key not in seen:
            seen.add(key)
            yield rank, error


def _reasons(view: JobView) -> Iterator[str]:
    lead = view.lead
    if view.state == SILENT:
        yield 'the job runs and has written no status: it has just started, or has status = "none", or cannot write'
    elif view.state == DIED and lead is None:
        yield "no job is running, and the last one has left no status"
    elif view.state == DIED:
        yield "the job is not running any more, and did not end as it should: what follows is the last it wrote"
    elif view.state == FAILED_JOB:
        yield "the job has ended with an exception"
    elif view.state == UNKNOWN:
        yield "whether the job runs cannot be told: the file system has no locks"
    if lead is not None and view.state in (DIED, UNKNOWN):
        yield f"last written {show_seconds(age_of(lead.written, view.time))} ago"
    if view.stale:
        yield (
            f"stale: rank {name_ranks(view.stale)} has not written for {show_seconds(STALE_S)} though a checkpoint is "
            "under way: it hangs or is gone, or its clock is behind"
        )
    for each in view.checkpoints:
        if each.missing:
            yield f"step {each.step}: rank {name_ranks(each.missing)} has not begun it"
        for level in each.levels:
            if level.late:
                yield f"step {each.step}: {level.name}: waiting for rank {name_ranks(level.late)}"
        yield from (f"step {each.step}: {line}" for line in each.hanging)
    if view.checkpoints:
        failed = [level for level in view.checkpoints[-1].levels if level.state == FAILED]
        yield from (f"step {view.checkpoints[-1].step} failed at level {level.name}" for level in failed)
