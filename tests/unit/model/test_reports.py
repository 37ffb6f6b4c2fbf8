"""What a checkpoint did and cost, as text: a few lines with units, without levels that are off."""

from __future__ import annotations

from dataclasses import replace

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
        "  share of this rank: 2.01 GB, 12.3 kB of it per rank, 1.65 GB when encoded\n"
        "  local: done after 812 ms, 1.65 GB written, 300 MB unchanged and not written again\n"
        "  partner: running\n"
        "  persistent: waiting"
    )


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
