"""What a checkpoint did and cost, as text: a few lines with units, without levels that are off."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from deeppart.errors import CheckpointError
from deeppart.model import LevelReport, Report

OFF = LevelReport("off")


#: A checkpoint to three levels, in each of the states that are not an end by itself.
REPORT = Report(
    step=100,
    raw_bytes=2_010_000_000,
    per_rank_bytes=12_300,
    encoded_bytes=1_650_000_000,
    blocked_s=0.0274,
    waited_s=0.0,
    stages_s={"flatten": 0.001, "capture": 0.026},
    levels={
        "local": LevelReport("done", 0.812, 1_650_000_000, None, 300_000_000),
        "partner": LevelReport("running"),
        "parity": OFF,
        "persistent": LevelReport("waiting"),
    },
)


def test_a_report_shows_time_share_and_the_levels_that_are_on() -> None:
    assert str(REPORT) == (
        "step 100: training blocked for 27.4 ms\n"
        "  share of this rank: 2.01 GB, 12.3 kB of it per rank or sharded, 1.65 GB when encoded\n"
        "  local: done after 812 ms, 1.65 GB written, 300 MB unchanged and not written again\n"
        "  partner: running\n"
        "  persistent: waiting"
    )


def test_what_is_zero_is_left_out() -> None:
    plain = replace(
        REPORT,
        per_rank_bytes=0,
        encoded_bytes=REPORT.raw_bytes,
        levels={"local": OFF, "persistent": LevelReport("done")},
    )
    assert str(plain) == ("step 100: training blocked for 27.4 ms\n  share of this rank: 2.01 GB\n  persistent: done")


def test_a_level_that_failed_says_why_in_lines_of_its_own() -> None:
    error = CheckpointError("the part could not be written", found="no space left on device", todo="free space")
    failed = LevelReport("failed", 2.5, 0, str(error))
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
        levels={"persistent": LevelReport("done", 1.0)},
    )
    assert str(eventful) == (
        "step 100: training blocked for 27.4 ms, 20 ms of it for an earlier checkpoint; optimizer.step() for 3 ms\n"
        "  share of this rank: 2.01 GB, 12.3 kB of it per rank or sharded, 1.65 GB when encoded\n"
        "  persistent: done after 1 s\n"
        "  persistent part written again, after errors that passed: 2 times\n"
        "  old checkpoints could not be removed: permission denied\n"
        "  reduced: parity: 1 node\n"
        "  diverged: model/bias\n"
        "  hanging: write on /lustre for 12 s"
    )


def test_a_checkpoint_that_saves_nothing_says_so() -> None:
    assert str(replace(REPORT, levels={"local": OFF, "persistent": OFF})) == "step 100: not due, nothing is saved"
    skipped = LevelReport("skipped")
    assert str(replace(REPORT, raw_bytes=0, levels={"local": OFF, "persistent": skipped})) == (
        "step 100: training blocked for 27.4 ms\n  persistent: skipped"
    )


# --- one level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (LevelReport("waiting"), "waiting"),
        (LevelReport("done", 0.0), "done after 0 s"),
        (LevelReport("done", 2.0, 4_000_000), "done after 2 s, 4 MB written"),
        (LevelReport("done", 2.0, referenced_bytes=999), "done after 2 s, 999 B unchanged and not written again"),
        (LevelReport("running", None, 1), "running, 1 B written"),
        (LevelReport("failed", None, 5000, "gone"), "failed, 5 kB written: gone"),
        (LevelReport("failed", error=""), "failed"),
    ],
)
def test_a_level_in_a_line(level: LevelReport, text: str) -> None:
    assert str(level) == text


# --- what is shown, and when ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"waited_s": 0.0009}, "step 100: training blocked for 27.4 ms"),
        ({"waited_s": 0.001}, "step 100: training blocked for 27.4 ms, 1 ms of it for an earlier checkpoint"),
        ({"held_s": 1e-4}, "step 100: training blocked for 27.4 ms; optimizer.step() for 100 us"),
    ],
)
def test_waiting_is_shown_where_it_can_be_seen(changes: dict[str, Any], begins: str) -> None:
    assert str(replace(REPORT, **changes)).splitlines()[0] == begins


@pytest.mark.parametrize(
    ("encoded", "shown"),
    [(0, ""), (1000, ", 1 kB when encoded"), (2000, ""), (2016, "")],
    ids=["not known", "smaller", "as large", "larger"],
)
def test_encoding_is_shown_where_it_makes_the_share_smaller(encoded: int, shown: str) -> None:
    report = replace(REPORT, raw_bytes=2000, per_rank_bytes=0, encoded_bytes=encoded)
    assert str(report).splitlines()[1] == f"  share of this rank: 2 kB{shown}"


def test_levels_are_shown_in_the_order_given() -> None:
    levels = {name: LevelReport("waiting") for name in ("persistent", "local", "partner")}
    assert str(replace(REPORT, raw_bytes=0, levels=levels)).splitlines()[1:] == [
        "  persistent: waiting",
        "  local: waiting",
        "  partner: waiting",
    ]


def test_every_note_has_a_line_and_of_each_its_own() -> None:
    noted = replace(REPORT, reduced=("a", "b"), diverged=("c", "d"), hanging=("e", "f"), raw_bytes=0)
    assert str(noted).splitlines()[-6:] == [
        "  reduced: a",
        "  reduced: b",
        "  diverged: c",
        "  diverged: d",
        "  hanging: e",
        "  hanging: f",
    ]


def test_reports_are_snapshots() -> None:
    with pytest.raises(FrozenInstanceError):
        REPORT.retries = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        OFF.state = "done"  # type: ignore[misc]
    assert REPORT.compression == {} and (REPORT.diverged, REPORT.reduced, REPORT.hanging) == ((), (), ())
