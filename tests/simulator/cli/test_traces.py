"""What happens to a job in a campaign, as options say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deeppart_simulator.campaign.failures import Waits
from deeppart_simulator.cli.traces import read_waits

from deeppart.errors import ConfigError
from tests.simulator.commands import sim, sim_json
from tests.simulator.traces.logs import PHILLY, SACCT, written

JOB = ("campaign", "--state", "tensors-64x4MB", "--ranks", "32", "--days", "1", "--seeds", "1", "--no-partner")
CADENCE = ("--every", "10min", "--levels", "persistent=1")


def test_turns_and_queues_are_in_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    turns = ("--time-limit", "4h", "--notice", "5min", "--queue", "2h")
    found = sim_json(capsys, *JOB, *CADENCE, *turns)
    (course,) = found["courses"]
    # Four turns of nearly four hours, and four waits of two: told 5 minutes before the end, it leaves at once.
    assert course["ends"] == {"time limit": 4} and course["in_time"] == 4
    assert course["buckets"]["queued"] == pytest.approx(4 * 7200, abs=1200) and course["lost_s"] < 1e-3
    assert sum(course["buckets"].values()) == pytest.approx(86400)
    code, out, _ = sim(capsys, *JOB, *CADENCE, *turns)
    assert code == 0 and "in the queue" in out and "ended: time limit" in out and "everything saved" in out
    assert "in the queue" not in sim(capsys, *JOB, *CADENCE)[1]


def test_a_log_of_jobs_is_followed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, SACCT.replace("2026-11-27T15:56:13|Unknown", "2026-11-27T15:56:13|2026-12-27T15:56:13"))
    found = sim_json(capsys, *JOB[:-3], "--no-partner", *CADENCE, "--trace", str(file), "--queue", "60s")
    (course,) = found["courses"]
    assert course["failures"] == {"node": 1, "process": 1} and course["ends"] == {"preemption": 1}


@pytest.mark.parametrize(
    ("text", "waits"),
    [("2h", Waits(7200.0)), ("exponential:30min", Waits(1800.0, exponential=True)), ("90", Waits(90.0))],
)
def test_times_in_the_queue(text: str, waits: Waits) -> None:
    assert read_waits(text) == waits


def test_times_in_the_queue_of_a_trace(tmp_path: Path) -> None:
    assert read_waits(str(written(tmp_path, json.dumps(PHILLY)))) == Waits(18.5, seen=(30.0, 7.0))
    with pytest.raises(ConfigError, match="how long jobs waited"):
        read_waits(str(written(tmp_path, "at_s,kind,nodes\n")))


@pytest.mark.parametrize("text", ["soon", "exponential:soon", "exponential:", "-1h", "0"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--queue"):
        read_waits(text)
