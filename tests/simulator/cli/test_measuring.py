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
