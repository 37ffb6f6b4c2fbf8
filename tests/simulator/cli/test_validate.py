"""``deeppart-sim validate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deeppart_simulator.cli import main

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
