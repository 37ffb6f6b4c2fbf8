"""``deeppart-sim validate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cli import main
from deeppart_simulator.machine.record import Machine
from deeppart_simulator.measure.validate import Comparison, Validation

from tests.simulator.commands import sim


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


def test_a_layout_that_cannot_be_measured_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = sim(capsys, "validate", "--ranks", "2", "--layout", "pp=2")
    assert code == 2 and "--layout" in err


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
