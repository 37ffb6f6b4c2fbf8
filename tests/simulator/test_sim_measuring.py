"""Calibration and validation: real checkpoints, under real MPI; what comes out is never judged by its speed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cli import main
from deeppart_simulator.machine.files import machine_toml, read_machine
from deeppart_simulator.measure.calibrate import Sample, fit, machine_from
from deeppart_simulator.measure.start import Directories, measure
from deeppart_simulator.measure.validate import Comparison, Validation, predict

import deeppart
from deeppart.cli.calibrate.tasks import SaveTask, Tasks, read_tasks, tasks_json


def _samples(ranks: int, crowding: float = 1.0) -> list[Sample]:
    """What a machine with round numbers would show: 10 GB/s copies of one rank, 16 of all, and so on."""
    samples = []
    for nbytes, tensors in ((1 << 20, 10), (1 << 27, 10), (1 << 25, 5000)):
        plan = (1e-3 + (2e-6 + (3e-6 if ranks > 1 else 0)) * tensors * ranks) * crowding
        capture = nbytes / min(10e9, 16e9 / ranks) + 4e-6 * tensors
        blocked = plan + capture
        local = 2e-3 + nbytes / min(2e9, 3e9 / ranks)
        persistent = 5e-3 + nbytes / min(1e9, 1.5e9 / ranks)
        restore = 1e-3 + nbytes / min(4e9, 6e9 / ranks)
        seconds = {"plan": plan, "capture": capture, "blocked": blocked, "local": local}
        samples.append(Sample(ranks, nbytes, tensors, seconds | {"persistent": persistent, "restore": restore}))
    return samples


PIECES: dict[str, Any] = {
    "codec": {
        "float32": {"ratio": 0.83, "encode": 1.7e9, "decode": 1.8e9},
        "int64": {"ratio": 1.0, "encode": 1.0, "decode": 1.0},
    },
    "hash": 16e9,
    "parity": 2.5e9,
    "network": {"bandwidth": 5e9, "latency": 1e-6},
}


def test_a_fit_finds_what_was_put_in() -> None:
    constant, per_byte, per_tensor = fit(_samples(1), "capture")
    assert constant == pytest.approx(0.0, abs=1e-9)
    assert (1 / per_byte, per_tensor) == pytest.approx((10e9, 4e-6))


def test_a_fit_of_noise_leaves_no_infinite_rate() -> None:
    """As on a machine where something else ran while the small shares were measured."""
    times = {1 << 20: 0.5, 1 << 24: 0.3, 1 << 27: 0.1}
    samples = [Sample(1, nbytes, 16, {"capture": seconds}) for nbytes, seconds in times.items()]
    constant, per_byte, per_tensor = fit(samples, "capture")
    assert per_byte == pytest.approx(0.1 / (1 << 27))
    assert constant >= 0 and per_tensor >= 0 and math.isfinite(constant + per_tensor)


def test_a_machine_from_samples_predicts_them(tmp_path: Path) -> None:
    machine = machine_from("round", 2, _samples(1), _samples(2), PIECES, PIECES["network"])
    assert machine.memory.copy == pytest.approx(10e9) and machine.memory.node_copy == pytest.approx(16e9)
    assert machine.memory.kappa_bytes == pytest.approx(40e3)
    assert machine.memory.hash == 16e9
    assert machine.memory.leaf == pytest.approx(2e-6) and machine.memory.compare == pytest.approx(3e-6, rel=0.01)
    assert (machine.local.rank_write, machine.local.write) == pytest.approx((2e9, 3e9))
    assert list(machine.codecs) == ["float32"]  # what does not shrink is stored raw
    file = tmp_path / "machine.toml"
    file.write_text(machine_toml(machine))
    again = read_machine(str(file))
    for ranks in (1, 2):
        for sample in _samples(ranks):
            save = SaveTask(sample.share_bytes * ranks, sample.share_tensors * ranks, persistent=True)
            found = predict(again, ranks, save)
            for what in ("blocked", "local", "persistent"):
                before = 0.0 if what == "blocked" else sample.seconds["blocked"]
                assert found[what] == pytest.approx(before + sample.seconds[what], rel=0.02), (ranks, sample, what)


def test_errors_of_a_validation() -> None:
    def comparison(predicted: float, measured: float) -> Comparison:
        return Comparison(1, 1, 1, None, "blocked", predicted, measured, measured, measured)

    good = Validation((comparison(1.1, 1.0), comparison(0.95, 1.0), comparison(1.2, 1.0)))
    assert good.median_error == pytest.approx(0.1) and good.worst_error == pytest.approx(0.2)
    assert Validation((comparison(1.0, 1.0), comparison(0.7, 1.0), comparison(1.0, 1.0))).met is False


def test_tasks_travel_as_json() -> None:
    lazy = SaveTask(1 << 10, 2, local=False, persistent=True, flush_bandwidth=1e6, capture="lazy", restore=True)
    tasks = Tasks((SaveTask(1 << 20, 8), lazy), "/a", "/b", ("float32",))
    assert read_tasks(tasks_json(tasks)) == tasks


@pytest.mark.parametrize("ranks", [1, 2])
def test_real_checkpoints_are_measured(tmp_path: Path, ranks: int) -> None:
    saves = [
        SaveTask(1 << 20, 8, persistent=True, rounds=2, restore=True),
        SaveTask(1 << 20, 4, local=False, persistent=True, rounds=2, capture="lazy"),
    ]
    found = measure(ranks, saves, Directories(tmp_path, tmp_path), ("float32", "int64") if ranks == 2 else ())
    for measured in found["saves"]:
        assert {len(times) for times in measured.values()} == {2}
        assert all(
            0 < blocked <= persistent
            for blocked, persistent in zip(measured["blocked"], measured["persistent"], strict=True)
        )
    assert min(found["saves"][0]["restore"]) > 0 and max(found["saves"][1]["local"]) == 0
    if ranks == 2:
        assert found["pieces"]["codec"]["float32"]["ratio"] < 0.9
        assert all(value > 0 for value in found["pieces"]["network"].values())
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_calibrate_writes_a_machine_that_the_library_takes_kappa_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.toml"
    arguments = ["calibrate", "--quick", "--out", str(file), "--ranks-per-node", "1", "--local-dir", str(tmp_path)]
    code = main([*arguments, "--persistent-dir", str(tmp_path), "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    machine = read_machine(str(file))
    assert math.isfinite(machine.memory.copy) and document["memory"]["copy"] == pytest.approx(
        machine.memory.copy, rel=1e-5
    )
    monkeypatch.chdir(tmp_path)
    config = deeppart.Config(machine=str(file))
    assert config.kappa == pytest.approx(machine.memory.kappa_bytes, rel=1e-5)


def test_validate_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "validate",
        "--quick",
        "--ranks",
        "1",
        "--local-dir",
        str(tmp_path),
        "--persistent-dir",
        str(tmp_path),
        "--json",
    ]
    code = main(arguments, standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert code == (0 if document["met"] else 1)
    assert len(document["comparisons"]) == 9
    assert all(each["predicted_s"] > 0 and each["measured_s"] > 0 for each in document["comparisons"])
