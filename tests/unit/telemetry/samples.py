"""Statuses for the tests of whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deeppart.model import LEVELS, LevelReport, Report, ScrubReport
from deeppart.telemetry import CheckpointStatus, ErrorStatus, RankStatus

SESSION = "0123456789abcdef" * 2
#: When the session of :func:`status` began, and as text.
BEGAN_S = 1795738883.0
BEGAN = "2026-11-27T00:21:23.000000Z"
WRITTEN = "2026-11-27T00:31:23.000000Z"
METRICS: dict[str, dict[str, float]] = {
    "checkpoints_total": {"": 3},
    "checkpoint_blocked_seconds_total": {"": 0.75},
    "checkpoint_blocked_seconds_max": {"": 0.5},
    "checkpoint_stage_seconds_total": {"capture": 0.5},
    "level_complete_total": {"local": 3, "persistent": 0},
    "level_failed_total": {"local": 0, "persistent": 0},
    "level_written_bytes_total": {"local": 1500, "persistent": 0},
    "level_last_step": {"local": 3},
    "level_last_time_seconds": {"local": BEGAN_S},
    "level_last_duration_seconds": {"local": 1.0},
    "level_last_written_bytes": {"local": 500},
    "level_last_busy_seconds": {"local": 0.5},
}


def report(step: int, *, stages: tuple[str, ...] = (), **levels: str) -> Report:
    """Of a checkpoint whose levels are in these states; the others are off."""
    states = {name: LevelReport(levels.get(name, "off")) for name in LEVELS}
    done = {name: replace(each, seconds=2.0, nbytes=500) for name, each in states.items() if each.state == "done"}
    failed = {name: replace(each, error="no space") for name, each in states.items() if each.state == "failed"}
    return Report(step, 1000, 0, 800, 0.25, 0.05, dict.fromkeys(stages, 0.5), {**states, **done, **failed})


def in_flight(number: int, step: int, began: str = WRITTEN, *, over: bool = False, **states: Any) -> CheckpointStatus:
    return CheckpointStatus(number, began, over, report(step, **states))


def status(rank: int = 0, **changes: Any) -> RankStatus:
    """A rank of two nodes of two ranks, with something in every field."""
    usual = RankStatus(
        session=SESSION,
        job="4711",
        library="deeppart 0.2.0",
        node=f"node{rank // 2}",
        process=100 + rank,
        rank=rank,
        world_size=4,
        nodes=2,
        began=BEGAN,
        written=WRITTEN,
        ended=None,
        failed=False,
        restored=7,
        every={"local": 1, "persistent": 4},
        period_s=None,
        next_due=None,
        repairing=False,
        reduced=("parity: 1 node instead of 2",),
        scrubbed=ScrubReport(2, 4000, 1, 1),
        metrics=METRICS,
        checkpoints=(in_flight(2, 3, BEGAN, over=True, local="done"),),
        errors=(ErrorStatus(BEGAN, 2, "persistent", "step 2 is not complete\n  found: no space"),),
    )
    return replace(usual, **changes)
