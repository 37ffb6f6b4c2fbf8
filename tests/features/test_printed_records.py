"""What ``print`` shows of the records that a user meets: a few lines with units, without levels that are off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import deeppart
from deeppart.errors import CheckpointError
from deeppart.partition import LeafSpec, partition
from deeppart.pending import DONE, FAILED, RUNNING, Pending

OFF = deeppart.LevelReport("off")
#: A checkpoint to three levels, in each of the states that are not an end by itself.
REPORT = deeppart.Report(
    step=100,
    raw_bytes=2_010_000_000,
    per_rank_bytes=12_300,
    encoded_bytes=1_650_000_000,
    blocked_s=0.0274,
    waited_s=0.0,
    stages_s={"flatten": 0.001, "capture": 0.026},
    levels={
        "local": deeppart.LevelReport("done", 0.812, 1_650_000_000, None, 300_000_000),
        "partner": deeppart.LevelReport("running"),
        "parity": OFF,
        "persistent": deeppart.LevelReport("waiting"),
    },
)


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_a_report_shows_time_share_and_the_levels_that_are_on() -> None:
    assert str(REPORT) == (
        "step 100: training blocked for 27.4 ms\n"
        "  share of this rank: 2.01 GB, 12.3 kB of it per rank, 1.65 GB when encoded\n"
        "  local: done after 812 ms, 1.65 GB written, 300 MB unchanged and not written again\n"
        "  partner: running\n"
        "  persistent: waiting"
    )


def test_what_is_zero_is_left_out() -> None:
    plain = replace(
        REPORT,
        per_rank_bytes=0,
        encoded_bytes=REPORT.raw_bytes,
        levels={"local": OFF, "persistent": deeppart.LevelReport(DONE)},
    )
    assert str(plain) == ("step 100: training blocked for 27.4 ms\n  share of this rank: 2.01 GB\n  persistent: done")


def test_a_level_that_failed_says_why_in_lines_of_its_own() -> None:
    error = CheckpointError("the part could not be written", found="no space left on device", todo="free space")
    failed = deeppart.LevelReport("failed", 2.5, 0, str(error))
    assert str(failed) == (
        "failed after 2.5 s: the part could not be written\n  found: no space left on device\n  to do: free space"
    )
    assert str(replace(REPORT, raw_bytes=0, levels={"local": OFF, "persistent": failed})) == (
        "step 100: training blocked for 27.4 ms\n"
        "  persistent: failed after 2.5 s: the part could not be written\n"
        "    found: no space left on device\n"
        "    to do: free space"
    )


def test_everything_that_happened_is_shown() -> None:
    eventful = replace(
        REPORT,
        waited_s=0.02,
        held_s=0.003,
        retries=2,
        retire_error="permission denied",
        reduced=("parity: 1 node",),
        diverged=("model/bias",),
        hanging=("write on /lustre for 12 s",),
        levels={"persistent": deeppart.LevelReport("done", 1.0)},
    )
    assert str(eventful) == (
        "step 100: training blocked for 27.4 ms, 20 ms of it for an earlier checkpoint; optimizer.step() for 3 ms\n"
        "  share of this rank: 2.01 GB, 12.3 kB of it per rank, 1.65 GB when encoded\n"
        "  persistent: done after 1 s\n"
        "  persistent part written again, after errors that passed: 2 times\n"
        "  old checkpoints could not be removed: permission denied\n"
        "  reduced: parity: 1 node\n"
        "  diverged: model/bias\n"
        "  hanging: write on /lustre for 12 s"
    )


def test_a_checkpoint_that_saves_nothing_says_so() -> None:
    assert str(replace(REPORT, levels={"local": OFF, "persistent": OFF})) == "step 100: not due, nothing is saved"
    skipped = deeppart.LevelReport("skipped")
    assert str(replace(REPORT, raw_bytes=0, levels={"local": OFF, "persistent": skipped})) == (
        "step 100: training blocked for 27.4 ms\n  persistent: skipped"
    )


def test_the_handle_shows_its_report_and_keeps_its_repr() -> None:
    pending = Pending(7, frozenset({"local", "parity", "persistent"}), lambda: None)
    pending.note_cost(raw_bytes=4000, blocked_s=0.5)
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


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_that_are_not_as_by_default() -> None:
    assert str(deeppart.Config()) == (
        "persistent_dir: ckpt\n"
        "every: persistent 1 (in checkpoints)\n"
        "keep: persistent 3 (in steps)\n"
        "all others as by default"
    )
    chosen = deeppart.Config(
        persistent_dir="/lustre/run",
        local_dir="/local",
        every={"local": 1, "parity": 4, "persistent": 4},
        keep={"persistent": 0},
        replicated={"replay/*": "none"},
        flush_bandwidth=500e6,
        timeout=120,
        parity_group=8,
        sign_key_file=["new", "old"],
    )
    assert str(chosen) == (
        "persistent_dir: /lustre/run\n"
        "local_dir: /local\n"
        "every: local 1, parity 4, persistent 4 (in checkpoints)\n"
        "keep: local 1, partner 1, parity 1, persistent all (in steps)\n"
        "replicated: replay/* none\n"
        "flush_bandwidth: 500 MB/s per node\n"
        "timeout: 2 min\n"
        "parity_group: 8 nodes\n"
        "sign_key_file: new, old\n"
        "all others as by default"
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"every": "auto"}, "keep: persistent 3 (in steps)"),
        ({"every": "auto", "local_dir": "/local"}, "keep: local 1, partner 1, parity 1, persistent 3 (in steps)"),
        ({"local_dir": "/local", "every": {"partner": 0}}, "keep: local 1, persistent 3 (in steps)"),
    ],
)
def test_levels_that_are_off_are_left_out_of_what_is_kept(settings: dict[str, Any], kept: str) -> None:
    assert kept in str(deeppart.Config(**settings)).splitlines()


def test_settings_from_the_environment_are_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPPART_TIMEOUT", "7")
    assert "timeout: 7 s" in str(deeppart.Config()).splitlines()


# --- the partitioner --------------------------------------------------------------------------------------------------


def test_a_plan() -> None:
    plan = partition([LeafSpec("a", 3_000_000), LeafSpec("b", 1_000_000)], ranks=3, kappa=0)
    assert str(plan) == "4 MB on 3 ranks: 1.33 MB to 1.33 MB each, leaves that are split: 1"
    assert repr(plan) == "Plan(deeppart, 3 ranks, 4000000 bytes)"
