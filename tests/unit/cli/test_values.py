"""Small values, for people and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.cli.values import cut, json_value, value_text


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
        ([1, 2.5], [1, 2.5], "1, 2.5 ... (2 in a list)"),
        ({"a": 1}, [["a", 1]], "'a': 1 ... (1 in a dict)"),
    ],
)
def test_values(value: Any, document: Any, text: str) -> None:
    assert json_value(value) == document and json.dumps(json_value(value), allow_nan=False)
    assert value_text(value) == text


def test_long_texts_are_cut() -> None:
    assert cut("x" * 61) == "x" * 57 + "..." and cut("x" * 60) == "x" * 60
    assert len(value_text(1 << 100_000)) == 60
