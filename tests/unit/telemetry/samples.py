"""Statuses for the tests of whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deeppart.model import LEVELS, LevelReport, Report
from deeppart.telemetry import CheckpointStatus, ErrorStatus, LevelTotals, RankStatus, ScrubStatus
from deeppart.telemetry.record import Totals

SESSION = "0123456789abcdef" * 2
#: When the session of :func:`status` began, and as text.
BEGAN_S = 1795738883.0
BEGAN = "2026-11-27T00:21:23.000000Z"
WRITTEN = "2026-11-27T00:31:23.000000Z"


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
    levels = {"local": LevelTotals(3, 0, 1500, 100, 1.5, 3, BEGAN, 1.0, 500, 0.5), "persistent": LevelTotals()}
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
        scrubbed=ScrubStatus(2, 4000, 1, 1),
        totals=Totals(3, 1, 0.75, 0.125, 0.0, 0.5, 3000, 2400, 1, 0, {"capture": 0.5}),
        levels=levels,
        checkpoints=(in_flight(2, 3, BEGAN, over=True, local="done"),),
        errors=(ErrorStatus(BEGAN, 2, "persistent", "step 2 is not complete\n  found: no space"),),
    )
    return replace(usual, **changes)
