"""What is compared how: in full, in turn, or not at all; and digests that are kept."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.compare import comparing
from deeppart.state.compare.comparing import Comparison, DigestCache
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
    monkeypatch.setattr(comparing, "_is_on_device", lambda data: isinstance(data, torch.Tensor))
    frozen = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    flat = flatten({"frozen": frozen, "x": torch.zeros(LARGE)})
    comparison = compare(flat)
    before = comparison.digests(flat, 0, {})
    assert comparison.digests(flat, 1, {})["full"] == before["full"] and not comparison.unread
    frozen.data[12_345] = 1  # not counted
    assert comparison.digests(flat, 2, {})["full"] != before["full"]


def test_nothing_is_kept_alive_and_nothing_is_marked() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    template = Template()
    flat = template.flatten({"p": parameter, "transposed": torch.zeros(300, 300).t()})
    comparison = compare(flat)
    comparison.digests(flat, 0, {})
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
    comparison.digests(flat, 0, watch.trained())
    assert comparison.full == [0] and comparison.training.tolist() == [0]
    step(optimizer, parameter)
    alone = flatten([parameter])
    comparison = compare(alone)
    comparison.digests(alone, 0, watch.trained())
    assert comparison.full == [] and comparison.in_turn.tolist() == [0]


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_a_frozen_parameter_is_read_once_and_again_when_it_has_changed() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    remembered, flat = DigestCache(), flatten({"p": parameter})
    first, unread = remembered.digests(flat, [0])
    assert not unread
    assert remembered.digests(flat, [0]) == (first, {0})
    parameter[5] = 1
    second, unread = remembered.digests(flat, [0])
    assert not unread and second != first
    parameter[5] = 0
    assert remembered.digests(flat, [0]) == (first, frozenset())


def test_frozen_parameters_of_a_module_are_known_through_its_state_dict() -> None:
    module = torch.nn.Linear(300, 300).requires_grad_(False)
    remembered = DigestCache()
    assert remembered.digests(flatten(module), [1])[1] == frozenset()
    assert remembered.digests(flatten(module), [1])[1] == {1}
    module.weight.mul_(2)
    assert remembered.digests(flatten(module), [1])[1] == frozenset()


def unknown(make: Any) -> bool:
    """Whether a leaf is read again although nothing about it seems to have changed."""
    remembered, (state, write) = DigestCache(), make()
    first, _ = remembered.digests(flatten(state()), [0])
    write()
    second, unread = remembered.digests(flatten(state()), [0])
    return not unread and first != second


def buffer_of_batch_norm() -> Any:
    norm = torch.nn.BatchNorm1d(LARGE, affine=False)
    return (lambda: {"a": norm.running_mean}), (lambda: norm(torch.ones(2, LARGE)))


def by_data() -> Any:
    buffer = torch.zeros(LARGE)
    return (lambda: {"a": buffer}), (lambda: buffer.data.fill_(1))


def an_alias_each_time() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    return (lambda: {"a": parameter.data}), (lambda: parameter.data.fill_(1))


def numpy_array() -> Any:
    array = np.zeros(LARGE)
    return (lambda: {"a": array}), (lambda: array.fill(1))


def parameter_that_numpy_sees() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    view = parameter.numpy()
    return (lambda: {"a": parameter}), (lambda: view.fill(1))


def parameter_made_of_numpy() -> Any:
    array = np.zeros(LARGE)
    parameter = torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)
    return (lambda: {"a": parameter}), (lambda: array.fill(1))


def parameter_in_shared_memory() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE).share_memory_(), requires_grad=False)
    return (lambda: {"a": parameter}), (lambda: parameter.data.fill_(1))


def inference_tensor() -> Any:
    with torch.inference_mode():
        tensor = torch.zeros(LARGE)

    def write() -> None:
        with torch.inference_mode():
            tensor.fill_(1)

    return (lambda: {"a": tensor}), write


def other_memory() -> Any:
    """``p.data = ...`` leaves object and counter as they are, and may get the address that was just freed."""
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)

    def write() -> None:
        parameter.data = torch.empty(0)
        parameter.data = torch.ones(LARGE)

    return (lambda: {"a": parameter}), write


def another_in_its_place() -> Any:
    """A parameter that is replaced by a new one, at the same address, whose counter begins at 0 too."""
    holder = [torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)]

    def write() -> None:
        holder.clear()
        gc.collect()
        holder.append(torch.nn.Parameter(torch.ones(LARGE), requires_grad=False))

    return (lambda: {"a": holder[0]}), write


def swapped() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    other = torch.nn.Parameter(torch.ones(LARGE), requires_grad=False)

    def write() -> None:
        held = parameter.data
        parameter.data = other.data
        other.data = held

    return (lambda: {"a": parameter}), write


@pytest.mark.parametrize(
    "make",
    [
        buffer_of_batch_norm,
        by_data,
        an_alias_each_time,
        numpy_array,
        parameter_that_numpy_sees,
        parameter_made_of_numpy,
        parameter_in_shared_memory,
        inference_tensor,
        other_memory,
        another_in_its_place,
        swapped,
    ],
)
def test_what_no_counter_tells_is_read_again(make: Any) -> None:
    assert unknown(make)
