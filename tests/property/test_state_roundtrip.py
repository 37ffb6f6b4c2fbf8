"""Any state comes back to the last bit, from a checkpointer that has seen others before."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

import deeppart
from tests.sampling import examples
from tests.states import Box, blank, difference
from tests.strategies import states

STEPS = itertools.count(1)


@pytest.fixture(scope="module")
def checkpointer() -> Iterator[deeppart.Checkpointer]:
    """One for all examples: structures change under its cached layout, and its staging memory is dirty."""
    memory = Path("/dev/shm")
    directory = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    config = deeppart.Config(persistent_dir=directory, timeout=30.0, keep={"persistent": 1})
    with deeppart.Checkpointer(config) as ck:
        yield ck
    shutil.rmtree(directory)


def save(ck: deeppart.Checkpointer, state: Any) -> int:
    step = next(STEPS)
    ck.checkpoint(state, step).wait(timeout=200)
    return step


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(state=states())
@example(state={"state": "\ud800\udc00"})
@example(state={"state": {(1,): torch.ones(2), "x": {0.0: 1}}})
@example(state={"state": {(True,): torch.ones(2), "x": {-0.0: 1}}})
@example(state={"state": Box(Box(Box({})))})
@example(state={"state": Box({})})  # which has the outline of the one before
@example(state={"state": {}})
def test_any_state_comes_back(checkpointer: deeppart.Checkpointer, state: Any) -> None:
    step = save(checkpointer, state)
    for mmap in (False, True):
        loaded = deeppart.load(checkpointer.config.persistent_dir, step, mmap=mmap)
        assert difference(state, loaded) is None
    live = blank(state)
    before = live["state"]
    assert checkpointer.restore(live) == step
    assert difference(state, live, ordered=False) is None
    if isinstance(before, (torch.Tensor, np.ndarray, list, dict)):
        assert live["state"] is before, "restored in place"


@st.composite
def tied_states(draw: st.DrawFn) -> dict[str, Any]:
    """Views of two base tensors, the bases themselves sometimes among them."""
    state: dict[str, Any] = {}
    bases = [torch.arange(24, dtype=torch.float32), torch.arange(48, dtype=torch.int16)]
    for number in range(draw(st.integers(1, 6))):
        base = bases[draw(st.integers(0, 1))]
        kind = draw(st.sampled_from(["same", "slice", "stride", "matrix", "transposed", "bytes", "expanded"]))
        at = draw(st.integers(0, 7))
        views = {
            "same": base,
            "slice": base[at : at + 9],
            "stride": base[at::3],
            "matrix": base.view(-1, 6),
            "transposed": base.view(-1, 6).T,
            "bytes": base.view(torch.uint8)[:7],
            "expanded": base[at : at + 1].expand(5),
        }
        state[f"{draw(st.integers(0, 9))}-{number}"] = views[kind]
    return state


def memory(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.data_ptr()


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=tied_states(), mmap=st.booleans())
def test_what_shares_memory_shares_it_again(
    checkpointer: deeppart.Checkpointer, state: dict[str, Any], mmap: bool
) -> None:
    step = save(checkpointer, state)
    loaded = deeppart.load(checkpointer.config.persistent_dir, step, mmap=mmap)
    assert difference(state, loaded) is None
    flat = {name for name, tensor in state.items() if tensor.is_contiguous() and tensor.numel() > 1}
    for one, other in itertools.permutations(state, 2):
        first, second = state[one], state[other]
        apart = first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
        if apart:
            assert memory(loaded[one])[0] != memory(loaded[other])[0], "not tied when it was not"
        elif owners := [name for name in flat if name != other and _inside(second, state[name])]:
            assert any(_as_far_apart(loaded, state, name, other) for name in owners), "a view inside another"
        elif memory(first) == memory(second) and first.stride() == second.stride() and first.shape == second.shape:
            assert memory(loaded[one]) == memory(loaded[other]), "one and the same view"
    mutated = {name: tensor.clone() for name, tensor in state.items()}
    checkpointer.restore(mutated)  # into untied leaves
    assert difference(state, mutated) is None
    expanded = [tensor for tensor in state.values() if tensor.stride() == (0,)]
    if not all(any(name in flat and _inside(tensor, state[name]) for name in state) for tensor in expanded):
        return  # refused: an expanded leaf that is not tied to another cannot be written to
    live = dict(state)
    expected = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in state.values():
        tensor.untyped_storage().fill_(0)
    checkpointer.restore(live)  # into the leaves it was saved from, tied as they were
    assert difference(expected, live) is None


def _as_far_apart(loaded: dict[str, Any], saved: dict[str, Any], one: str, other: str) -> bool:
    distances = {states[other].data_ptr() - states[one].data_ptr() for states in (loaded, saved)}
    return memory(loaded[one])[0] == memory(loaded[other])[0] and len(distances) == 1


def _inside(view: torch.Tensor, owner: torch.Tensor) -> bool:
    reach = sum((length - 1) * stride for length, stride in zip(view.shape, view.stride(), strict=True))
    start, end = view.data_ptr(), view.data_ptr() + (reach + 1) * view.element_size()
    return owner.data_ptr() <= start and end <= owner.data_ptr() + owner.numel() * owner.element_size()
