"""What the strategies draw: every kind that is stored, and only what can be."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from deeppart.state.tensors.leaves import TORCH_DTYPES
from deeppart.state.tree.flattening import flatten
from deeppart.state.tree.value_containers import is_run
from deeppart.testing import strategies
from deeppart.testing.states import Box, arrays

QUICK = hypothesis.settings(max_examples=60, database=None, derandomize=True)


@QUICK
@hypothesis.given(strategies.states())
def test_every_state_can_be_taken_apart(state: dict[str, Any]) -> None:
    flat = flatten(state)
    assert len(list(arrays(state))) == len(flat.arrays)


def test_every_dtype_of_torch_is_drawn() -> None:
    drawn: set[torch.dtype] = set()

    @hypothesis.settings(max_examples=100, database=None)
    @hypothesis.given(st.data())
    def draw(data: st.DataObject) -> None:
        drawn.add(data.draw(strategies.tensors().map(lambda tensor: tensor.dtype)))

    for seed in range(20):
        if drawn != set(TORCH_DTYPES.values()):
            hypothesis.seed(seed)(draw)()
    assert drawn == set(TORCH_DTYPES.values())


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        (strategies.tensors(), lambda tensor: tensor.numel() > 1 and not tensor.is_contiguous()),
        (strategies.numpy_arrays(), lambda array: array.dtype.byteorder == ">"),
        (strategies.numpy_arrays(), lambda array: array.dtype.kind == "U" and array.size > 0),
        (strategies.numpy_scalars(), lambda scalar: scalar.dtype.kind == "M"),
        (strategies.values, lambda value: type(value) is float and math.isnan(value)),
        (strategies.keys, lambda key: type(key) is tuple),
        (strategies.runs(), is_run),
        (strategies.runs(), lambda run: not is_run(run)),
        (strategies.states(), lambda state: isinstance(state["state"], Box)),
        (strategies.states(), lambda state: isinstance(state["state"], tuple) and hasattr(state["state"], "_fields")),
    ],
    ids=range(10),
)
def test_what_is_rare_and_hard_is_drawn(strategy: st.SearchStrategy[Any], wanted: Any) -> None:
    found = (hypothesis.Phase.generate,)  # no smaller one is looked for
    settings = hypothesis.settings(max_examples=5000, database=None, derandomize=True, phases=found)
    assert wanted(hypothesis.find(strategy, wanted, settings=settings))
