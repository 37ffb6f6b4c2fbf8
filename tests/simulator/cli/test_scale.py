"""``deeppart-sim scale``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, rows_of, sim, sim_json


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
