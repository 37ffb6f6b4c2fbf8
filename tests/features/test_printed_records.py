"""What ``print`` shows of the records that a user meets: a few lines with units, without levels that are off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import deeppart
from deeppart.errors import CheckpointError
from deeppart.partition import LeafSpec, partition
from deeppart.pending import FAILED, RUNNING, Pending

# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_the_handle_shows_its_report_and_keeps_its_repr() -> None:
    pending = Pending(7, frozenset({"local", "parity", "persistent"}))
    pending.note(raw_bytes=4000, blocked_s=0.5)
    pending.note_level("parity", RUNNING)
    pending.note_level("persistent", FAILED, error=CheckpointError("the disk is full"))
    after = pending.report.levels["persistent"].seconds
    assert after is not None
    assert str(pending) == str(pending.report)
    assert str(pending).splitlines()[:-1] == [
        "step 7: training blocked for 500 ms",
        "  share of this rank: 4 kB",
        "  local: waiting",
        "  parity: running",
    ]
    assert str(pending).endswith(": the disk is full")
    assert repr(pending) == ("<Pending step 7: local waiting, parity running, persistent failed; the disk is full>")
    assert len(pending.failures()) == 1, "a failure that was printed is still to be told"


# --- what a checkpointer says of itself -------------------------------------------------------------------------------


def test_scrubbing() -> None:
    assert str(deeppart.ScrubReport()) == "nothing read yet"
    assert str(deeppart.ScrubReport(3, 12_300_000_000)) == (
        "12.3 GB read by this rank, full rounds: 3, no damage found"
    )
    assert str(deeppart.ScrubReport(0, 1000, damaged=1, repaired=2)) == (
        "1 kB read by this rank, full rounds: 0, 1 found damaged\n  copies or parity rebuilt by all ranks: 2 times"
    )


def cadence_report(**changes: Any) -> deeppart.CadenceReport:
    cadence = deeppart.Cadence(20.0, {"local": 1, "persistent": 15}, deeppart.Waste(0.005, 0.006, 1e-7))
    costs = (
        deeppart.LevelCost("local", 0.2, latency_s=1.5, busy_s=2.0, restart_s=3.0, failures_per_s=2 / 86_400),
        deeppart.LevelCost("persistent", 1.0, failures_per_s=1 / 86_400),
    )
    return replace(deeppart.CadenceReport(cadence, costs, 3, 432_000.0, 0.03), **changes)


def test_a_cadence_and_what_it_follows_from() -> None:
    report = cadence_report()
    assert str(report) == (
        "local every 20 s, persistent every 5 min\n"
        "  expected to be lost: 1.1 % of the time: 0.5 % saving, 0.6 % done again\n"
        "  a failure every 8 h (3 seen in 5 d); training is 3 % slower while the background works"
    )
    assert str(report.costs[0]) == (
        "local: costs 200 ms, complete after 1.5 s, busy for 2 s, back after 3 s, needed once in 12 h"
    )
    assert str(report.costs[1]) == "persistent: costs 1 s, needed once in 24 h"


def test_a_cadence_before_anything_has_failed() -> None:
    quiet = cadence_report(costs=(deeppart.LevelCost("local", 0.2),), failures=0, observed_s=0.0)
    assert str(quiet).splitlines()[-1] == (
        "  no failures (no earlier run seen); training is 3 % slower while the background works"
    )
    assert str(deeppart.Waste(1e-7, 0.0, 0.0)) == "less than 0.001 % of the time"


# --- the partitioner --------------------------------------------------------------------------------------------------


def test_a_plan() -> None:
    plan = partition([LeafSpec("a", 3_000_000), LeafSpec("b", 1_000_000)], ranks=3, kappa=0)
    assert str(plan) == "4 MB on 3 ranks: 1.33 MB to 1.33 MB each, leaves that are split: 1"
    assert repr(plan) == "Plan(deeppart, 3 ranks, 4000000 bytes)"
