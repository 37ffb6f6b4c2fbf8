"""``deeppart-sim calibrate``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cli import main
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import Machine
from deeppart_simulator.measure.validate import Comparison, Validation

import deeppart
from tests.simulator.commands import sim


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


@pytest.mark.now_and_then(4)
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
    assert len(document["comparisons"]) == 10
    assert {each["what"] for each in document["comparisons"]} == {"blocked", "local", "persistent", "restore"}
    assert all(each["predicted_s"] > 0 and each["measured_s"] > 0 for each in document["comparisons"])


def test_the_page_has_the_machine_of_the_ranks_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restores are not measured of tensors that ranks divide: of two ranks there is nothing."""

    def measured(machine_for: Callable[[int], Machine], *_: Any, **_named: Any) -> Validation:
        machine_for(1)
        return Validation((Comparison("restore", 1, 1 << 20, 4, None, "restore", 1.0, 1.0, 1.0, 1.0),))

    monkeypatch.setattr("deeppart_simulator.cli.validate.compare", measured)
    page = tmp_path / "page.html"
    wanted = ("--machine", "frontier", "--ranks", "1,2", "--layout", "fsdp", "--only", "restore")
    code, _, err = sim(capsys, "validate", *wanted, "--report", str(page))
    assert code == 0, err
    assert "frontier" in page.read_text()
