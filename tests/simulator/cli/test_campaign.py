"""``deeppart-sim campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, rows_of, sim, sim_json


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
