"""Real checkpoints are timed, stage by stage, on as many levels as were asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.measure.job import __main__ as main
from deeppart_simulator.measure.job import saves
from deeppart_simulator.measure.job.saves import MEASURED, measure_save
from deeppart_simulator.measure.tasks import SaveTask, Tasks, tasks_json

from deeppart.comm import SingleComm


@pytest.mark.parametrize("local", [True, False])
def test_each_round_that_counts_has_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    monkeypatch.setattr(saves, "_BEFORE", 1)
    task = SaveTask(nbytes=40_000, tensors=3, rounds=2, local=local, persistent=True)
    found = measure_save(SingleComm(), task, tmp_path / "local", tmp_path / "ckpt")
    assert set(found) == set(MEASURED) and all(len(numbers) == 2 for numbers in found.values())
    there = {"capture", "blocked", "persistent", "work", "alone", "trained"} | ({"local"} if local else set())
    assert {name for name, numbers in found.items() if all(number > 0 for number in numbers)} == there
    assert (tmp_path / "local").exists() == local
    for blocked, persistent in zip(found["blocked"], found["persistent"], strict=True):
        assert persistent >= blocked, "counted from the call"


def test_a_task_finds_nothing_of_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's storage may be memory: all that a calibration of 4 ranks writes there is more than 24 GB."""
    before: list[set[str]] = []

    def looking(comm: Any, task: SaveTask, local_dir: Path, persistent_dir: Path) -> Any:
        roots = {tmp_path / "local", tmp_path / "file-system"}
        before.append({path.name for root in roots if root.exists() for path in root.iterdir()})
        return measure_save(comm, task, local_dir, persistent_dir)

    monkeypatch.setattr(saves, "_BEFORE", 1)
    monkeypatch.setattr(main, "measure_save", looking)
    task = SaveTask(1 << 16, 2, persistent=True, rounds=1)
    file = tmp_path / "tasks.json"
    file.write_text(tasks_json(Tasks((task, task), str(tmp_path / "local"), str(tmp_path / "file-system"))))
    main.main(str(file))
    assert before == [set(), set()]


def test_a_rank_that_hangs_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(saves, "_BEFORE", 1)
    monkeypatch.setattr(saves, "_STACKS_AFTER_S", 0.2)
    step = saves._Trainer.step

    def hangs(self: Any, turn: int) -> None:
        step(self, turn)
        time.sleep(0.6)

    monkeypatch.setattr(saves._Trainer, "step", hangs)
    measure_save(SingleComm(), SaveTask(1 << 16, 2, rounds=1), tmp_path / "local", tmp_path / "file-system")
    told = capfd.readouterr().err
    assert "Timeout (0:00:00" in told and "in hangs" in told
