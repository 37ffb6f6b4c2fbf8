"""``deeppart-sim goodput``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import rows_of, sim, sim_json

SOME = ("goodput", "--state", "mlperf-8b", "--machine", "p4d", "--ranks", "64")


def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second after every nine minutes 59 is a 600th: of 8 nodes, 9.6 node-hours in 30 days, at 32.77 USD."""
    file = tmp_path / "table.csv"
    document = sim_json(capsys, *SOME, "--every", "599s", "--blocked", "1s", "--csv", str(file))
    assert (document["format"], document["version"], document["nodes"]) == ("deeppart-sim-goodput", 1, 8)
    asked = next(row for row in document["rows"] if not row["way"])
    assert asked["lost"] == pytest.approx(1 / 600) and asked["node_hours"] == pytest.approx(9.6)
    assert (
        asked["money"] == pytest.approx(9.6 * 32.77)
        and asked["kwh"] == pytest.approx(9.6 * 6.5)
        and document["currency"] == "USD"
    )
    assert {row["way"] for row in document["rows"]} >= {"deeppart", "torch.save, one rank for each part"}
    assert [float(row["lost"]) for row in rows_of(file)] == [row["lost"] for row in document["rows"]]
    code, out, _ = sim(capsys, *SOME, "--every", "599s", "--blocked", "1s")
    assert code == 0 and "315 USD" in out and "62.4 kWh" in out and "in 30 days" in out
    code, out, _ = sim(capsys, "goodput", "--state", "mlperf-8b", "--machine", "azure-lustre", "--ranks", "64")
    assert code == 0 and "no energy: [power] busy" in out and "no money: [price]" in out


def test_the_usual_rows_and_a_machine_that_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    document = sim_json(capsys, "goodput", "--state", "mlperf-8b", "--machine", "p4d", "--ranks", "1024", "--days", "1")
    assert {row["every_s"] for row in document["rows"]} == {60, 600, 3600} and len(document["rows"]) == 3 * 9
    assert "a what-if" in document["notes"][0]
    lost = [row["lost"] for row in document["rows"] if row["every_s"] == 60]
    assert lost == sorted(lost) and 0 < lost[0] < lost[-1] < 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--every", "1min,"),
        ("--every", "0s"),
        ("--blocked", "never"),
        ("--blocked", "-1s"),
        ("--days", "0"),
        ("--days", "1e300"),
        ("--every", "1e-300s"),
        ("--blocked", "1e308s"),
        ("--every", "1000 years"),
    ],
)
def test_impossible_times_are_refused(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    code, out, err = sim(capsys, *SOME, f"{option}={value}")
    assert code == 2 and out == "" and option in err


def test_one_node_has_no_copies_to_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_json(capsys, "goodput", "--state", "gpt2", "--ranks", "4")["nodes"] == 1
