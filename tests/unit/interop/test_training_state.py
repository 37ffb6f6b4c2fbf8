"""Random generators, and small nested values as texts."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.training_state import pack, rng_state, set_rng_state, unpack
from deeppart.testing import difference


def draw() -> tuple[Any, ...]:
    return random.random(), random.gauss(0, 1), float(np.random.rand()), np.random.randn(), torch.rand(2).tolist()


def test_generators_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    draw()  # leaves half of a pair of Gaussian numbers in Python's and in numpy's generator
    state = {"rng": rng_state()}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.checkpoint(state, step=1)
        expected = draw()
        fresh: dict[str, Any] = {"rng": {}}
        checkpointer.restore(fresh)
    set_rng_state(fresh["rng"])
    assert draw() == expected


NESTED: dict[Any, Any] = {
    "position": 3,
    7: None,
    ("a", 1): [True, -0.0, float("inf"), 1 << 70, "text", b"\x00\xff"],
    "tuple": (1, (2.5,), torch.Size([2])),
    "tensors": [
        torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        torch.tensor(3),
        torch.empty(0, 4),
        torch.zeros(2).conj(),
    ],
    "array": np.arange(4, dtype="<u4")[::2],
    "empty": [{}, [], ()],
}


def test_a_nested_value_comes_back_to_the_last_bit() -> None:
    assert difference(NESTED, unpack(pack(NESTED, "x"), "x")) is None


def test_what_derives_from_a_dict_comes_back_as_one() -> None:
    assert unpack(pack(OrderedDict(a=1), "x"), "x") == {"a": 1}


@pytest.mark.parametrize("value", [object(), torch.eye(2).to_sparse(), np.array([object()])])
def test_what_has_no_exact_encoding_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(UnsupportedLeafError, match="state/worker/0"):
        pack({"worker": [value]}, "state")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        '["{}"]',
        '["{}",[[1]]]',
        '["{}",[[["[]",[]],1]]]',
        '["array",["torch","float32",[2]],"AAAA"]',
        '["array",["torch","pickle",[1]],"AAAA"]',
        '["array",["torch","float32",[-1]],""]',
        '["array",["torch","float32",[1]],"!"]',
        '["eval","1"]',
        "[" * 100_000,
    ],
)
def test_another_text_is_damage(text: str) -> None:
    with pytest.raises(CorruptFileError):
        unpack(text, "x")
