"""Sums over the checkpoints of a session, of what their reports say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from deeppart.model.reports import Report
from deeppart.pending import DONE, FAILED, SKIPPED
from deeppart.storage.timestamps import timestamp
from deeppart.telemetry.record import ErrorStatus, LevelTotals, Totals

#: Errors that are remembered.
_MOST_ERRORS = 5


class Sums:
    """Adds reports up. Used by one thread."""

    def __init__(self, levels: Sequence[str]) -> None:
        self.totals = Totals()
        self.levels: Mapping[str, LevelTotals] = {level: LevelTotals() for level in levels}
        self.errors: tuple[ErrorStatus, ...] = ()

    def add(self, report: Report, began_s: float) -> None:
        """Count a checkpoint that is over; its levels for themselves: :meth:`add_level`."""
        old, skipped = self.totals, any(level.state == SKIPPED for level in report.levels.values())
        stages = {**old.stages_s}
        for stage, seconds in report.stages_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
        self.totals = Totals(
            checkpoints=old.checkpoints + (not skipped),
            skipped=old.skipped + skipped,
            blocked_s=old.blocked_s + report.blocked_s,
            waited_s=old.waited_s + report.waited_s,
            held_s=old.held_s + report.held_s,
            most_blocked_s=max(old.most_blocked_s, report.blocked_s),
            raw_bytes=old.raw_bytes + report.raw_bytes,
            encoded_bytes=old.encoded_bytes + report.encoded_bytes,
            retries=old.retries + report.retries,
            retire_errors=old.retire_errors + (report.retire_error is not None),
            stages_s=stages,
        )
        if report.retire_error is not None:
            self._note(ErrorStatus(timestamp(began_s), report.step, "", report.retire_error))

    def add_level(self, name: str, report: Report, began_s: float) -> None:
        """Count one level of a checkpoint, which is over there. ``began_s`` as for :meth:`add`."""
        old, level = self.levels.get(name, LevelTotals()), report.levels[name]
        ended = timestamp(began_s + (level.seconds or 0.0))
        if level.state == FAILED:
            self._note(ErrorStatus(ended, report.step, name, level.error or "it failed"))
        busy_s = report.stages_s.get(name, 0.0)
        new = replace(
            old,
            done=old.done + (level.state == DONE),
            failed=old.failed + (level.state == FAILED),
            written_bytes=old.written_bytes + level.nbytes,
            unchanged_bytes=old.unchanged_bytes + level.referenced_bytes,
            busy_s=old.busy_s + busy_s,
        )
        if level.state == DONE:
            new = replace(
                new,
                last_step=report.step,
                last_at=ended,
                last_seconds=level.seconds,
                last_bytes=level.nbytes,
                last_busy_s=busy_s,
            )
        self.levels = {**self.levels, name: new}

    def _note(self, error: ErrorStatus) -> None:
        self.errors = (*self.errors, error)[-_MOST_ERRORS:]
