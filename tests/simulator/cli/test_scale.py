"""``deeppart-sim scale``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, rows_of, sim, sim_json

# --- scale ------------------------------------------------------------------------------------------------------------


def test_scale_as_json_and_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "scale.csv"
    document = sim_json(
        capsys,
        "scale",
        *SMALL,
        "--ranks",
        "1,4,64,65536",
        "--ranks-per-node",
        "8",
        "--strategy",
        "deeppart,whole",
        "--csv",
        str(file),
    )
    assert [point["ranks"] for point in document["points"]] == [1, 1, 4, 4, 64, 64, 65536, 65536]
    by_strategy = {(p["ranks"], p["strategy"]): p for p in document["points"]}
    assert by_strategy[64, "deeppart"]["imbalance"] <= 1.02 < by_strategy[64, "whole"]["imbalance"]
    rows = rows_of(file)
    assert [row["ranks"] for row in rows] == ["1", "1", "4", "4", "64", "64", "65536", "65536"]
    assert float(rows[0]["stages_capture"]) == document["points"][0]["stages"]["capture"]


def test_more_nodes_than_the_machine_has_are_a_what_if(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    some = ("scale", *SMALL, "--ranks", "64,65536", "--ranks-per-node", "4", "--strategy", "deeppart")
    document, (code, out, _) = sim_json(capsys, *some), sim(capsys, *some)
    assert code == 0 and "a what-if: 16,384 nodes, and frontier has 9,856;" in out
    assert [point["nodes"] for point in document["points"]] == [16, 16384]
    assert len(document["notes"]) == 1 and document["notes"][0] in out
    assert sim_json(capsys, *some[:3], "--ranks", "64")["notes"] == []


SOME = ("scale", "--goodput", "--state", "mlperf-8b", "--machine", "p4d", "--ranks", "64")


def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second after every nine minutes 59 is a 600th: of 8 nodes, 9.6 node-hours in 30 days, at 32.77 USD."""
    file = tmp_path / "table.csv"
    document = sim_json(capsys, *SOME, "--every", "599s", "--blocked", "1s", "--csv", str(file))
    assert (document["format"], document["version"], document["nodes"]) == ("deeppart-sim-scale", 1, 8)
    asked = next(row for row in document["goodput"]["rows"] if not row["way"])
    assert asked["lost"] == pytest.approx(1 / 600) and asked["cost"]["node_hours"] == pytest.approx(9.6)
    assert asked["cost"]["money"] == pytest.approx(9.6 * 32.77) and document["goodput"]["currency"] == "USD"
    assert {row["way"] for row in document["goodput"]["rows"]} >= {"deeppart", "torch.save, one rank for each part"}
    assert [float(row["lost"]) for row in rows_of(file)] == [row["lost"] for row in document["goodput"]["rows"]]
    code, out, _ = sim(capsys, *SOME, "--every", "599s", "--blocked", "1s")
    assert code == 0 and "315 USD" in out and "in 30 days" in out
    code, out, _ = sim(
        capsys, "scale", "--goodput", "--state", "mlperf-8b", "--machine", "azure-lustre", "--ranks", "64"
    )
    assert code == 0 and "no money: [price]" in out
