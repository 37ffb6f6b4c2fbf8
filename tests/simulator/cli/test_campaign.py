"""``deeppart-sim campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.campaign.failures import Waits
from deeppart_simulator.cli.options import _read_waits

from deeppart.errors import ConfigError
from tests.simulator.commands import SMALL, rows_of, sim, sim_json
from tests.simulator.traces.logs import SACCT, written

# --- campaign ---------------------------------------------------------------------------------------------------------


def test_a_campaign_is_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("campaign", *SMALL, "--ranks", "4096", "--days", "2", "--seeds", "2", "--seed", "5", "--json")
    first, second = (sim(capsys, *arguments)[1] for _ in range(2))
    assert first == second
    other = sim(capsys, *arguments[:-3], "--seed", "6", "--json")[1]
    assert other != first


def test_a_campaign_with_a_trace_and_a_given_cadence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, table = tmp_path / "trace.csv", tmp_path / "campaign.csv"
    trace.write_text("at_s,kind,nodes\n5000,node,1\n9000,process,0\n")
    document = sim_json(
        capsys, "campaign", *SMALL, "--ranks", "32", "--days", "0.2", "--seeds", "1", "--trace", str(trace),
        "--every", "10min", "--levels", "local=1,partner=1,persistent=6", "--csv", str(table), "--spares", "1",
    )  # fmt: skip
    assert document["cadence"]["period_s"] == 600 and document["cadence"]["every"]["persistent"] == 6
    assert document["courses"][0]["recoveries"] == {"local": 1, "partner": 1}
    assert len(rows_of(table)) == 1


def test_what_is_advised_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    """The levels, the cadence and the compression are those of ``advise``, and so is the useful time, nearly."""
    said = sim_json(capsys, "advise", *SMALL, "--ranks", "64", "--mtbf-factor", "1")["advised"]
    played = sim_json(capsys, "campaign", *SMALL, "--ranks", "64", "--advised", "--days", "3", "--seeds", "1")
    every = {level.removeprefix("every_"): count for level, count in said.items() if level.startswith("every_")}
    assert played["cadence"]["every"] == {level: count for level, count in every.items() if count}
    assert played["cadence"]["period_s"] <= said["period_s"]
    assert played["cadence"]["period_s"] == pytest.approx(said["period_s"], rel=0.05)
    code, _, err = sim(capsys, "campaign", *SMALL, "--advised", "--every", "10 min", "--days", "1")
    assert code == 2 and "--advised" in err


@pytest.mark.parametrize("more", [("--levels", "local=1,partner=0,persistent=4"), ("--advised", "--no-partner")])
def test_the_page_has_the_setup_that_was_played(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    page = tmp_path / "page.html"
    some = ("campaign", *SMALL, "--ranks", "64", "--days", "1", "--seeds", "1", "--report", str(page))
    code, out, err = sim(capsys, *some, *more)
    assert code == 0, err
    (setup,) = [line for line in out.splitlines() if "a call after every" in line]
    levels = setup.partition(":")[0]
    text = page.read_text().replace("<wbr>", "")
    assert "partner" not in levels and setup.partition(".")[0] in text and f"{levels}; capture" in text
    assert ("<h2>Advice</h2>" in text) == ("--advised" in more)


def test_a_level_that_is_best_left_out_is_never_written_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not even by the first call, which goes to all that are on."""
    file = tmp_path / "system.toml"
    file.write_text('base = "frontier"\n[failures]\nprocess = "never"\nnode = "never"\nsystem = "1 d"\n')
    some = ("campaign", *SMALL[:2], "--machine", str(file), "--ranks", "64", "--days", "0.5", "--seeds", "1")
    without = sim_json(capsys, *some)
    assert without["cadence"]["every"]["partner"] == 0
    assert "partner" not in without["courses"][0]["checkpoints"]
    asked = sim_json(capsys, *some, "--partner")
    assert asked["cadence"]["every"]["partner"] == asked["cadence"]["every"]["persistent"] > 0
    assert asked["courses"][0]["checkpoints"]["partner"] > 1


def test_the_words_of_one_run_and_of_rare_levels(capsys: pytest.CaptureFixture[str]) -> None:
    some = ("campaign", *SMALL, "--ranks", "512", "--days", "0.1", "--seeds", "1", "--every", "1min")
    out = sim(capsys, *some, "--levels", "local=1,partner=11,persistent=672")[1]
    assert "one run" in out and "1 runs" not in out
    assert "partner at every 11th call" in out and "persistent at every 672nd call" in out
    out = sim(capsys, *some, "--levels", "local=21,partner=1113,persistent=3")[1]
    assert "local at every 21st call" in out and "every 1,113th call" in out and "every 3rd call" in out


def test_a_trace_with_far_more_failures_than_the_machine_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Cadence and spare nodes that are left out are for the failures of the machine file."""
    file = tmp_path / "trace.csv"
    failures = "".join(f"{3600 * hour},node,{hour % 8}\n" for hour in range(1, 20))
    file.write_text(f"# seconds = 172800\n# nodes = 64\nat_s,kind,nodes\n{failures}")
    some = ("campaign", *SMALL, "--ranks", "64", "--days", "1", "--trace", str(file))
    assert "the trace has 19 failures" in sim(capsys, *some)[1]
    (note,) = sim_json(capsys, *some)["notes"]
    assert "the trace has 19 failures, where frontier has 0.0" in note and "deeppart-sim fit" in note
    given = ("--every", "10min", "--levels", "local=1,persistent=6", "--spares", "4")
    assert sim_json(capsys, *some, *given)["notes"] == []
    file.write_text("# seconds = 172800\n# nodes = 64\nat_s,kind,nodes\n3600,node,1\n")
    assert sim_json(capsys, *some)["notes"] == []


def test_a_campaign_on_a_machine_without_failures_needs_a_cadence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "safe.toml"
    file.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
    some = ("campaign", *SMALL[:2], "--machine", str(file), "--ranks", "8", "--days", "0.1", "--seeds", "1")
    code, _, err = sim(capsys, *some)
    assert code == 2 and "never fails" in err and "deeppart.plan" not in err
    assert sim(capsys, *some, "--every", "10min", "--levels", "local=1,persistent=6")[0] == 0


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


def test_times_in_the_queue_of_a_trace(tmp_path: Path) -> None:
    seen = (1.0, 1.0, 0.0, 4.0, 0.0, 0.0, 12.0, 0.0, 0.0, 4.0)
    assert _read_waits(str(written(tmp_path, SACCT))) == Waits(2.2, seen=seen)
    with pytest.raises(ConfigError, match="how long jobs waited"):
        _read_waits(str(written(tmp_path, "at_s,kind,nodes\n")))


@pytest.mark.parametrize("text", ["soon", "exponential:soon", "exponential:", "-1h", "0"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--queue"):
        _read_waits(text)
