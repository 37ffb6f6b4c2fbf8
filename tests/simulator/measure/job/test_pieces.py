"""Single operations are timed: every number is there and possible; how large it is says nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from deeppart_simulator.measure.job import pieces
from deeppart_simulator.measure.job.pieces import measure_pieces

from deeppart.comm import SingleComm


def test_every_operation_has_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pieces, "_SECONDS", 0.0)
    found = measure_pieces(SingleComm(), ["float32", "int32"], tmp_path)
    assert found["network"] is None, "one rank sends nothing"
    assert list(found["codec"]) == ["float32", "int32"]
    for numbers in found["codec"].values():
        assert set(numbers) == {"ratio", "encode", "decode"} and 0 < numbers["ratio"] <= 1.0
    assert set(found["serialize"]) == {"stream", "tensor"} and found["serialize"]["tensor"] >= 0
    assert [path.name for path in tmp_path.iterdir()] == ["torch-save"], "it is the caller's to remove"
    rates = [
        found["hash"],
        found["serialize"]["stream"],
        *(numbers["encode"] for numbers in found["codec"].values()),
    ]
    assert all(rate > 0 and math.isfinite(rate) for rate in rates)
