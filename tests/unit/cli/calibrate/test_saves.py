"""Real checkpoints are timed, stage by stage, on as many levels as were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.cli.calibrate import saves
from deeppart.cli.calibrate.saves import MEASURED, measure_save
from deeppart.cli.calibrate.tasks import SaveTask
from deeppart.comm import SingleComm


@pytest.mark.parametrize("local", [True, False])
def test_each_round_that_counts_has_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    monkeypatch.setattr(saves, "_BEFORE", 1)
    task = SaveTask(nbytes=40_000, tensors=3, rounds=2, local=local, persistent=True, restore=local)
    found = measure_save(SingleComm(), task, tmp_path / "local", tmp_path / "ckpt")
    assert set(found) == set(MEASURED) and all(len(numbers) == 2 for numbers in found.values())
    for name, numbers in found.items():
        assert all(number > 0 for number in numbers) == (local or name not in ("local", "restore")), name
    assert (tmp_path / "local").exists() == local
    for blocked, persistent in zip(found["blocked"], found["persistent"], strict=True):
        assert persistent >= blocked, "counted from the call"
