"""Sums of reports."""

from __future__ import annotations

from dataclasses import replace

from deeppart.telemetry.totals import Sums
from tests.unit.telemetry.samples import BEGAN, BEGAN_S, report


def test_sums_grow_and_the_last_is_remembered() -> None:
    sums = Sums(("local", "persistent"))
    for step in (1, 2):
        one = report(step, stages=("capture", "local"), local="done", persistent="running")
        sums.add_level("local", one, BEGAN_S)
        sums.add(one, BEGAN_S)
    totals, local = sums.totals, sums.levels["local"]
    assert (totals.checkpoints, totals.blocked_s, totals.most_blocked_s, totals.raw_bytes) == (2, 0.5, 0.25, 2000)
    assert totals.stages_s == {"capture": 1.0, "local": 1.0}
    assert (local.done, local.written_bytes, local.busy_s, local.last_step) == (2, 1000, 1.0, 2)
    assert local.last_at == "2026-11-27T00:21:25.000000Z" and local.last_seconds == 2.0
    assert sums.levels["persistent"].done == 0, "a level that was off in the first checkpoints is there all the same"


def test_failures_and_refusals_are_remembered_the_last_few() -> None:
    sums = Sums(("persistent",))
    sums.add_level("persistent", report(1, persistent="done"), BEGAN_S)
    for step in range(2, 9):
        one = report(step, persistent="failed")
        sums.add_level("persistent", one, BEGAN_S)
    sums.add(replace(report(9, persistent="done"), retire_error="read-only"), BEGAN_S)
    level = sums.levels["persistent"]
    assert (level.done, level.failed, level.last_step) == (1, 7, 1)
    assert [(each.step, each.level, each.text) for each in sums.errors[-2:]] == [
        (8, "persistent", "no space"),
        (9, "", "read-only"),
    ]
    assert len(sums.errors) == 5 and sums.errors[-1].at == BEGAN and sums.totals.retire_errors == 1


def test_what_was_dropped_is_counted_apart() -> None:
    sums = Sums(("persistent",))
    sums.add(report(1, persistent="skipped"), BEGAN_S)
    assert (sums.totals.checkpoints, sums.totals.skipped) == (0, 1)
