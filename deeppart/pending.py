"""A checkpoint under way, as the training loop sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deeppart.access.hanging import hanging
from deeppart.errors import CheckpointError, LevelNotRunError, PeerTimeoutError
from deeppart.model import LEVELS, Level, LevelReport, Report

OFF, SKIPPED, WAITING, RUNNING, DONE, FAILED = "off", "skipped", "waiting", "running", "done", "failed"
_FINAL = frozenset({OFF, SKIPPED, DONE, FAILED})


@dataclass(frozen=True, slots=True)
class Failure:
    """A level that failed.

    Attributes:
        error: the reason.
        told: true if ``wait`` has raised it already.
        agreed: true if every rank has the same error, since a commit round has ended with it.
    """

    error: CheckpointError
    told: bool
    agreed: bool

    def is_news(self, rank: int) -> bool:
        """True if the caller must be told on this rank: if all ranks know it, only rank 0 tells."""
        return not self.told and (rank == 0 or not self.agreed)


@dataclass(slots=True)
class _LevelProgress:
    state: str = OFF
    finished_at: float | None = None
    nbytes: int = 0
    referenced_bytes: int = 0
    error: CheckpointError | None = None
    agreed: bool = False
    #: Whether ``wait`` has raised the error, and whether ``failures`` has returned it.
    told: bool = False
    counted: bool = False


@dataclass(slots=True)
class _Costs:
    raw_bytes: int = 0
    per_rank_bytes: int = 0
    encoded_bytes: int = 0
    blocked_s: float = 0.0
    waited_s: float = 0.0
    retire_error: str | None = None
    retries: int = 0
    diverged: tuple[str, ...] = ()
    held_s: float = 0.0
    reduced: tuple[str, ...] = ()
    stages_s: dict[str, float] = field(default_factory=dict)
    compression: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Pending:
    """Handle of one ``checkpoint()`` call. Methods may be called from any thread.

    Attributes:
        step: the user's step.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"epoch": 1}, step=100)  # training goes on here
        ...     pending.wait("persistent", timeout=600)
        ...     print(*pending.levels, pending.done("persistent"))
        persistent True
    """

    def __init__(self, step: int, due: frozenset[str], poll: Callable[[], None]) -> None:
        """Made by ``checkpoint()``.

        Args:
            step: the user's step.
            due: levels this checkpoint goes to.
            poll: called while waiting; advances the exchange where the MPI library leaves that to the training thread.
        """
        self.step = step
        self._poll = poll
        self._returned_at = time.monotonic()
        self._changed = threading.Condition()
        self._levels = {name: _LevelProgress(WAITING if name in due else OFF) for name in LEVELS}
        self._costs = _Costs()

    def __repr__(self) -> str:
        """For logs and debuggers: no lock, no exchange, and a failure that is shown here is still reported."""
        states = [f"{name} {progress.state}" for name, progress in self._levels.items() if progress.state != OFF]
        errors = [progress.error for progress in self._levels.values()]
        reasons = [f"{error.summary:.100}" for error in errors if error is not None]
        return f"<Pending step {self.step}: {'; '.join([', '.join(states) or 'not due', *reasons])}>"

    def __str__(self) -> str:
        """For people: what it cost so far."""
        return str(self.report)

    @property
    def levels(self) -> frozenset[str]:
        """The levels that this checkpoint goes to; none for a call that was not due."""
        return frozenset(name for name, progress in self._levels.items() if progress.state not in (OFF, SKIPPED))

    def done(self, level: str = Level.PERSISTENT) -> bool:
        """True if the checkpoint is complete at a level, on every rank. Never blocks, never raises for a failure.

        Raises:
            LevelNotRunError: no such level.
        """
        self._poll()
        return self._level(level).state == DONE

    def wait(self, level: str = Level.PERSISTENT, timeout: float | None = None) -> None:
        """Wait until the checkpoint is complete at a level, on every rank.

        Args:
            timeout: seconds; None waits as long as the pipeline itself does: each of its waits is bounded, and where an
                error ends one of its threads, all levels fail.

        Raises:
            CheckpointError: the level failed; the last good checkpoint is still there.
            LevelNotRunError: this checkpoint does not go to that level.
            PeerTimeoutError: not complete within ``timeout``; it is still under way.
        """
        progress = self._level(level)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._poll()
            with self._changed:
                if progress.state in _FINAL:
                    break
                if deadline is not None and time.monotonic() > deadline:
                    raise PeerTimeoutError(
                        f"step {self.step}: not complete at level {level!r} within {timeout:g} s",
                        found="; ".join([f"the level is {progress.state}", *hanging()]),
                        todo="wait longer, or look at pending.report for what is slow",
                    )
                self._changed.wait(0.01)
        if progress.error is not None:
            progress.told = True
            raise progress.error
        if progress.state != DONE:
            raise LevelNotRunError(
                f"step {self.step} does not go to level {level!r}: "
                + ("it is off, or not due at this call" if progress.state == OFF else f"it is {progress.state}"),
                expected=f"one of {sorted(self.levels)}"
                if self.levels
                else "a call that saves something: this one did not",
                todo="checkpoint(..., force=True) goes to all levels that are on; `every` says which are, and when",
            )

    def settled(self, level: str) -> bool:
        """True if nothing more will happen at a level."""
        return self._level(level).state in _FINAL

    @property
    def skipped(self) -> bool:
        """True if ``on_busy="skip"`` dropped this checkpoint."""
        return any(progress.state == SKIPPED for progress in self._levels.values())

    @property
    def finished(self) -> bool:
        """True if nothing more will happen to this checkpoint, complete or failed."""
        return all(progress.state in _FINAL for progress in self._levels.values())

    @property
    def report(self) -> Report:
        """The cost so far."""
        with self._changed:
            levels = {
                name: LevelReport(
                    progress.state,
                    None if progress.finished_at is None else max(0.0, progress.finished_at - self._returned_at),
                    progress.nbytes,
                    None if progress.error is None else str(progress.error),
                    progress.referenced_bytes,
                )
                for name, progress in self._levels.items()
            }
            costs = self._costs
            return Report(
                self.step,
                costs.raw_bytes,
                costs.per_rank_bytes,
                costs.encoded_bytes,
                costs.blocked_s,
                costs.waited_s,
                dict(costs.stages_s),
                levels,
                costs.retire_error,
                costs.retries,
                costs.diverged,
                dict(costs.compression),
                costs.held_s,
                costs.reduced,
                () if self.finished else hanging(),
            )

    # --- for the checkpointer and the pipeline, which reports progress through the ``note_*`` ones ---

    def failures(self) -> list[Failure]:
        """The failures since the last call; each failure is returned once."""
        fresh = []
        for progress in self._levels.values():
            if progress.error is not None and not progress.counted:
                progress.counted = True
                fresh.append(Failure(progress.error, progress.told, progress.agreed))
        return fresh

    def note_cost(self, **costs: int | float | str | tuple[str, ...]) -> None:
        """Set figures of :class:`Report` by name."""
        with self._changed:
            for name, value in costs.items():
                setattr(self._costs, name, value)

    def note_retry(self) -> None:
        """The persistent part is written again."""
        with self._changed:
            self._costs.retries += 1

    def note_compression(self, level: str, reasons: tuple[str, ...]) -> None:
        """Note how a level's part is encoded, and why."""
        with self._changed:
            self._costs.compression[level] = reasons

    def note_stage(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage."""
        with self._changed:
            self._costs.stages_s[stage] = self._costs.stages_s.get(stage, 0.0) + seconds

    def note_returned(self) -> None:
        """``checkpoint()`` returns now: levels' seconds count from here."""
        self._returned_at = time.monotonic()

    def note_level(
        self,
        level: str,
        state: str,
        *,
        nbytes: int = 0,
        referenced_bytes: int = 0,
        error: CheckpointError | None = None,
        agreed: bool = False,
    ) -> None:
        """A level has moved on, unless it is over; ``agreed`` as for :class:`Failure`."""
        with self._changed:
            progress = self._levels[level]
            if progress.state in _FINAL:
                return
            progress.state = state
            progress.nbytes = nbytes or progress.nbytes
            progress.referenced_bytes = referenced_bytes or progress.referenced_bytes
            progress.error, progress.agreed = error, agreed
            if state in _FINAL:
                progress.finished_at = time.monotonic()
            self._changed.notify_all()

    def note_skipped(self) -> None:
        """This checkpoint is dropped."""
        for name, progress in self._levels.items():
            if progress.state != OFF:
                self.note_level(name, SKIPPED)

    def _level(self, name: str) -> _LevelProgress:
        if name not in self._levels:
            raise LevelNotRunError(f"there is no level {name!r}", expected=f"one of {LEVELS}")
        return self._levels[name]
