"""``deeppart-sim campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, rows_of, sim, sim_json

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
