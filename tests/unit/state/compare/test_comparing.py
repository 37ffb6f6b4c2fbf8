"""What is compared how: in full, in turn, or not at all."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from deeppart.state.compare import comparing
from deeppart.state.compare.comparing import Comparison
from deeppart.state.compare.optimizers import TrainingWatch
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.leaves import leaf_type
from deeppart.state.tree.template import Template
from tests.unit.state.compare.steps import step

LARGE = 70_000


def compare(flat: FlatState) -> Comparison:
    return Comparison(range(len(flat.data)), flat, [leaf_type(data) for data in flat.data])


def test_leaves_on_a_device_are_all_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that GPU leaves go, with tensors of the CPU."""
    monkeypatch.setattr(comparing, "is_on_device", lambda data: isinstance(data, torch.Tensor))
    frozen = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    flat = flatten({"frozen": frozen, "x": torch.zeros(LARGE)})
    comparison = compare(flat)
    before = comparison.digests(flat, 0, None)
    assert comparison.digests(flat, 1, None)["full"] == before["full"] and not comparison.unread
    frozen.data[12_345] = 1  # not counted
    assert comparison.digests(flat, 2, None)["full"] != before["full"]


def test_nothing_is_kept_alive_and_nothing_is_marked() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    template = Template()
    flat = template.flatten({"p": parameter, "transposed": torch.zeros(300, 300).t()})
    comparison = compare(flat)
    comparison.digests(flat, 0, None)
    comparison.in_full(flat)
    assert all(data.untyped_storage().resizable() for data in flat.data), "numpy has seen none of them"
    watch = weakref.ref(parameter)
    template.clear()
    del parameter, flat
    gc.collect()
    assert watch() is None


# --- what is trained --------------------------------------------------------------------------------------------------


def test_a_leaf_that_is_larger_than_the_parameter_at_its_address_is_read_in_full(watch: TrainingWatch) -> None:
    memory = torch.zeros(3, LARGE)
    parameter = torch.nn.Parameter(memory[0])
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    step(optimizer, parameter)
    flat = flatten({"all": memory, "row": [parameter]})
    comparison = Comparison([0], flat, [leaf_type(data) for data in flat.data])
    comparison.digests(flat, 0, watch)
    assert comparison.full == [0] and comparison.training.tolist() == [0]
    step(optimizer, parameter)
    alone = flatten([parameter])
    comparison = compare(alone)
    comparison.digests(alone, 0, watch)
    assert comparison.full == [] and comparison.in_turn.tolist() == [0]
