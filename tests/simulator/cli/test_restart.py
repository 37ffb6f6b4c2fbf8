"""``deeppart-sim restart``: the comparison as tables, JSON and CSV, all of the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.machine.record import PIECES, WAYS

from tests.simulator.commands import rows_of, sim, sim_json

JOB = ("restart", "--state", "tensors-64x4MB", "--machine", "byterobust", "--ranks", "64", "--no-partner")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("restart") / "ways.csv"


def test_tables_documents_and_rows_say_the_same(capsys: pytest.CaptureFixture[str], written: Path) -> None:
    document = sim_json(capsys, *JOB, "--csv", str(written))
    assert (document["format"], document["version"], document["restart_mode"]) == ("deeppart-sim-restart", 1, "spares")
    ways: dict[str, Any] = {each["way"]: each for each in document["ways"]}
    assert tuple(ways) == tuple(WAYS)
    requeued = ways["job"]["after"]["node"]["pieces_s"]
    assert requeued["requeue"] == pytest.approx(397 + 64 * 0.0195) and requeued["replace"] == 0.0
    assert ways["allocation"]["after"]["node"]["pieces_s"]["replace"] == 241.0
    assert "replace" not in ways["spares"]["after"]["node"]["pieces_s"]
    rows = rows_of(written)
    for way, each in ways.items():
        of_way = {row["row"]: row for row in rows if row["way"] == way}
        assert set(of_way) == {*each["after"], "of the time", "saved by half"}
        for kind, back in each["after"].items():
            assert float(of_way[kind]["back"]) == pytest.approx(back["total_s"])
            for piece in PIECES:
                assert float(of_way[kind][piece]) == pytest.approx(back["pieces_s"].get(piece, 0.0))
        parts = [float(of_way["of the time"][part]) for part in each["shares"]]
        assert sum(parts) == pytest.approx(each["lost"])
    code, out, _ = sim(capsys, *JOB)
    assert code == 0 and "first_step" not in out, "a piece that costs nothing is not shown"
    for way in WAYS.values():
        assert f"- {way.name}: {way.words}" in out
    assert "6 min 38 s" in out, "the queue"


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = sim(capsys, "restart", "--machine", "byterobus")
    assert code == 2 and "byterobust" in err
    code, _, err = sim(capsys, "restart", "--ranks", "4", "--partner")
    assert code == 2 and "--partner" in err
