"""The handle of a pending checkpoint."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from deeppart.access.hanging import hanging
from deeppart.errors import CheckpointError, LevelNotRunError, PeerTimeoutError
from deeppart.model import LEVELS, Level, LevelReport, Report
from deeppart.progress import pause_watch

OFF, SKIPPED, WAITING, RUNNING, DONE, FAILED = "off", "skipped", "waiting", "running", "done", "failed"
_FINAL = frozenset({OFF, SKIPPED, DONE, FAILED})


@dataclass(slots=True)
class LevelProgress:
    """How a level of a checkpoint gets on.

    Attributes:
        report: its figures.
        finished_at: when it has ended.
        error: why it has failed, or None.
        agreed: true if every rank has the same error, from a commit round.
        raised: true if ``wait`` has raised the error.
        counted: true if ``failures`` has returned this.
    """

    report: LevelReport
    finished_at: float | None = None
    error: CheckpointError | None = None
    agreed: bool = False
    raised: bool = False
    counted: bool = False

    @property
    def state(self) -> str:
        """The level's state."""
        return self.report.state

    def is_news(self, rank: int) -> bool:
        """True if this rank must warn the caller of the error: rank 0 alone warns of an agreed one."""
        return not self.raised and (rank == 0 or not self.agreed)


class Pending:
    """Handle of one ``checkpoint()`` call. Methods may be called from any thread.

    Attributes:
        step: the caller's step.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"epoch": 1}, step=100)  # training goes on here
        ...     pending.wait("persistent", timeout=600)
        ...     print(*pending.levels, pending.done("persistent"))
        persistent True
    """

    def __init__(self, step: int, due: frozenset[str]) -> None:
        """Created by ``checkpoint()``; ``due`` are the levels that the checkpoint goes to."""
        self.step = step
        self._returned_at = time.monotonic()
        self._changed = threading.Condition()
        self._levels = {name: LevelProgress(LevelReport(WAITING if name in due else OFF)) for name in LEVELS}
        self._report = Report(step)  # without its levels

    def __repr__(self) -> str:
        """For logs and debuggers: takes no lock, and does not mark a failure as reported."""
        states = [f"{name} {progress.state}" for name, progress in self._levels.items() if progress.state != OFF]
        errors = [progress.error for progress in self._levels.values()]
        reasons = [f"{error.summary:.100}" for error in errors if error is not None]
        return f"<Pending step {self.step}: {'; '.join([', '.join(states) or 'not due', *reasons])}>"

    def __str__(self) -> str:
        """The report as text."""
        return str(self.report)

    @property
    def levels(self) -> frozenset[str]:
        """The levels that this checkpoint goes to; empty if it was not due."""
        return frozenset(name for name, progress in self._levels.items() if progress.state not in (OFF, SKIPPED))

    def done(self, level: str = Level.PERSISTENT) -> bool:
        """True if the checkpoint is complete at a level on every rank. Does not block or raise the level's error.

        Raises:
            LevelNotRunError: there is no such level.
        """
        return self._level(level).state == DONE

    def wait(self, level: str = Level.PERSISTENT, timeout: float | None = None) -> None:
        """Wait until the checkpoint is complete at a level on every rank.

        Args:
            level: the level.
            timeout: seconds; None waits for the pipeline, whose waits are all bounded.

        Raises:
            CheckpointError: the level failed; the previous checkpoint is still available.
            LevelNotRunError: this checkpoint does not go to that level.
            PeerTimeoutError: not complete within ``timeout``; the checkpoint continues.
        """
        progress = self._level(level)
        if not self.wait_settled(level, timeout):
            raise PeerTimeoutError(
                f"step {self.step}: not complete at level {level!r} within {timeout:g} s",
                found="; ".join([f"the level is {progress.state}", *hanging()]),
                todo="wait longer, or see pending.report for the slow stage",
            )
        if progress.error is not None:
            progress.raised = True
            raise progress.error
        if progress.state != DONE:
            raise LevelNotRunError(
                f"step {self.step} does not go to level {level!r}: "
                + ("it is off, or not due at this call" if progress.state == OFF else f"it is {progress.state}"),
                expected=f"one of {sorted(self.levels)}"
                if self.levels
                else "a call that saves something: this one did not",
                todo="checkpoint(..., force=True) goes to all enabled levels; `every` sets which are enabled, and when",
            )

    def settled(self, level: str) -> bool:
        """True if a level is in its final state."""
        return self._level(level).state in _FINAL

    @property
    def skipped(self) -> bool:
        """True if ``on_busy="skip"`` dropped this checkpoint."""
        return any(progress.state == SKIPPED for progress in self._levels.values())

    @property
    def finished(self) -> bool:
        """True if all levels are in their final states, complete or failed."""
        return all(progress.state in _FINAL for progress in self._levels.values())

    @property
    def report(self) -> Report:
        """The costs so far."""
        with self._changed:
            levels = {}
            for name, progress in self._levels.items():
                at, error = progress.finished_at, progress.error
                levels[name] = replace(
                    progress.report,
                    seconds=None if at is None else max(0.0, at - self._returned_at),
                    error=None if error is None else str(error),
                )
            return replace(self._report, levels=levels, hanging=() if self.finished else hanging())

    # --- for the checkpointer and the pipeline ---

    def wait_settled(self, level: str, timeout: float | None = None) -> bool:
        """Wait until a level is in its final state; False if it is not within ``timeout``."""
        progress = self._level(level)
        with pause_watch(), self._changed:
            return self._changed.wait_for(lambda: progress.state in _FINAL, timeout)

    def failures(self) -> list[LevelProgress]:
        """The levels that have failed since the last call."""
        fresh = [each for each in self._levels.values() if each.error is not None and not each.counted]
        for each in fresh:
            each.counted = True
        return fresh

    def note(self, **figures: Any) -> None:
        """Set figures of :class:`Report` by name."""
        with self._changed:
            self._report = replace(self._report, **figures)

    def add(self, **figures: float) -> None:
        """Add to figures of :class:`Report`."""
        with self._changed:
            self._report = replace(
                self._report, **{name: getattr(self._report, name) + more for name, more in figures.items()}
            )

    def note_compression(self, level: str, reasons: tuple[str, ...]) -> None:
        """Note a level's encoding, and the reasons for it."""
        with self._changed:
            self._report = replace(self._report, compression={**self._report.compression, level: reasons})

    def note_stage(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage."""
        with self._changed:
            stages_s = self._report.stages_s
            self._report = replace(self._report, stages_s={**stages_s, stage: stages_s.get(stage, 0.0) + seconds})

    def note_returned(self) -> None:
        """``checkpoint()`` returns now: the levels' seconds count from here."""
        self._returned_at = time.monotonic()

    def note_level(
        self, level: str, state: str, *, error: CheckpointError | None = None, agreed: bool = False, **figures: Any
    ) -> None:
        """Set a level's state, unless it is final, and figures of its :class:`LevelReport`."""
        with self._changed:
            progress = self._levels[level]
            if progress.state in _FINAL:
                return
            progress.report = replace(progress.report, state=state, **figures)
            progress.error, progress.agreed = error, agreed
            if state in _FINAL:
                progress.finished_at = time.monotonic()
            self._changed.notify_all()

    def note_skipped(self) -> None:
        """Mark this checkpoint as skipped."""
        for name, progress in self._levels.items():
            if progress.state != OFF:
                self.note_level(name, SKIPPED)

    def _level(self, name: str) -> LevelProgress:
        if name not in self._levels:
            raise LevelNotRunError(f"there is no level {name!r}", expected=f"one of {LEVELS}")
        return self._levels[name]
