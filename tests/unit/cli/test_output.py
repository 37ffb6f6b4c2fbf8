"""What commands print: texts, values and records, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

import deeppart
from deeppart.cli.commands import printable, printable_lines
from deeppart.cli.output import PlainConsole, cut, json_value, long_text, value_text
from deeppart.cli.show import _description
from deeppart.offline.inspect.contents import Leaf
from deeppart.state.tensors.leaves import LeafType
from tests.unit.cli_support import call, part_path, save
from tests.unit.one_damage import one_damage


def test_long_lists_are_cut(tmp_path: Path) -> None:
    state = {f"leaf {i}": np.full(3, i) for i in range(50)}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait("persistent", timeout=200)
    part_path(tmp_path, 1).unlink()
    assert "    and 30 more leaves; --json lists all\n  50 leaves damaged\n" in call("verify", tmp_path, code=1)
    assert len(one_damage(tmp_path)["leaves"]) == 50


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


def test_long_texts_are_cut() -> None:
    assert cut("x" * 61) == "x" * 57 + "..." and cut("x" * 60) == "x" * 60
    assert len(value_text(1 << 100_000)) == 60


@pytest.mark.parametrize("form", [None, "deque(maxlen=9)"])
def test_no_item_of_a_run_is_cut_and_how_many_there_are_is_said(form: str | None) -> None:
    numbers = [1 / 3, 2 / 3, -1e-300 / 7, 4.0]
    said = f"(4 in a {form or 'list'})"
    assert value_text(numbers, form) == f"0.3333333333333333 ... {said}"
    assert long_text(numbers, form) == f"{', '.join(map(repr, numbers))} {said}"
    assert long_text(list(range(100_000)), form).endswith(f" ... (100000 in a {form or 'list'})")
    assert len(long_text(list(range(100_000)))) < 1100
    assert value_text(["x" * 500, 1]) == f"'{'x' * 32}... ... (2 in a list)"
    assert value_text(list(range(10))) == "0, 1, 2, 3 ... (10 in a list)"


def test_a_value_alone_is_shown_whole_or_its_length_is() -> None:
    assert long_text("y" * 500) == repr("y" * 500)
    assert long_text("y" * 5000) == f"'{'y' * 999} ... (5,002 characters, --full has them)"
    assert (
        long_text(frozenset(range(300)))
        == repr(frozenset(range(300)))[:1000] + " ... (1,401 characters, --full has them)"
    )


def test_shapes_that_differ_between_ranks_are_shown() -> None:
    kinds = {0: LeafType("torch", "uint8", (4,)), 1: LeafType("torch", "uint8", (5,))}
    text = "".join(piece for piece, _ in _description(Leaf("x", kinds[0], kinds, None, ())))
    assert text == "uint8[4]  4 B  per rank (0-1)  differing: uint8[4], uint8[5]"
