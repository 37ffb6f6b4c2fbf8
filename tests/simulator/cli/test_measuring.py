"""``deeppart-sim calibrate``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from deeppart_simulator.cli import main
from deeppart_simulator.machine.files import read_machine

import deeppart


@pytest.mark.now_and_then(4)
def test_calibrate_writes_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.toml"
    arguments = ["calibrate", "--quick", "--out", str(file), "--ranks-per-node", "1", "--local-dir", str(tmp_path)]
    code = main([*arguments, "--persistent-dir", str(tmp_path), "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    machine = read_machine(str(file))
    assert math.isfinite(machine.memory.copy) and document["memory"]["copy"] == pytest.approx(
        machine.memory.copy, rel=1e-5
    )


def test_calibrate_prints_kappa_as_a_job_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = read_machine("frontier")
    monkeypatch.setattr("deeppart_simulator.cli.calibrate.measure_machine", lambda *_, **__: machine)
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate"], standalone_mode=False) == 0
    Path("deeppart.toml").write_text(capsys.readouterr().out.splitlines()[-1])
    assert deeppart.Config().kappa == round(machine.memory.kappa_bytes)
