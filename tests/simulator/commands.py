"""Calls of ``deeppart-sim``, and what they print."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cli import main

#: A machine on which nothing fails.
QUIET = """
base = "frontier"
failures = { node = "never", system = "never" }
groups = { power.mtbf = "never", cabinet.mtbf = "never" }
"""
SMALL = ("--state", "bert-base+adam", "--machine", "frontier")


def sim(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments], standalone_mode=False)
    out, err = capsys.readouterr()
    return code, out, err


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def sim_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = sim(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)
