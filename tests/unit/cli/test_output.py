"""What commands print: texts, values and records, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

from deeppart.cli.commands import printable, printable_lines
from deeppart.cli.output import PlainConsole, json_value, value_text
from tests.unit.cli_support import call, save


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\x1b[2Jb\r\n\u202e\x9b") == "a\\x1b[2Jb\\r\\n\\u202e\\x9b"
    assert printable("Größe 1/2 ✓") == "Größe 1/2 ✓"
    assert printable_lines("a\x07\nb\x1b") == "a\\x07\nb\\x1b"


def test_progress_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    assert "━" not in call("verify", tmp_path)
    for module in ("output", "verify"):
        monkeypatch.setattr(f"deeppart.cli.{module}.console", lambda: PlainConsole(force_terminal=True, width=100))
    text = click.unstyle(call("verify", tmp_path))
    bar = text[text.rindex(" ━") :]
    assert "6.1/6.1 MB" in bar and "B/s" in bar and "0:00:00" in bar
    assert "\x1b[" not in call("verify", tmp_path, "--json")


@pytest.mark.parametrize(
    ("value", "document", "text"),
    [
        (1, 1, "1"),
        (2**63 - 1, 2**63 - 1, "9223372036854775807"),
        (1 << 63, "0x8000000000000000", "0x8000000000000000"),
        (True, True, "True"),
        (None, None, "None"),
        (0.5, 0.5, "0.5"),
        (float("nan"), "nan", "nan"),
        ("a\x1b", "a\x1b", "'a\\x1b'"),
        (torch.bfloat16, "torch.bfloat16", "torch.bfloat16"),
        (np.float32(1), "np.float32(1.0)", "np.float32(1.0)"),
        ([1, 2.5], [1, 2.5], "1, 2.5 (2 in a list)"),
        ({"a": 1}, [["a", 1]], "'a': 1 (1 in a dict)"),
    ],
)
def test_values(value: Any, document: Any, text: str) -> None:
    assert json_value(value) == document and json.dumps(json_value(value), allow_nan=False)
    assert value_text(value) == text
