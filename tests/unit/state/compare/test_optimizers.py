"""Which tensors an optimizer has, however it came to have them, and which it is seen to train."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deeppart.state.compare import optimizers as owners
from deeppart.state.compare.optimizers import OwnedTensors, TrainingWatch
from deeppart.state.fingerprint import SMALL_LEAF_BYTES
from deeppart.state.tree.flattening import flatten


@pytest.fixture
def watch() -> Iterator[TrainingWatch]:
    """Watches the optimizers of this process, for leaves of more than 1000 bytes."""
    watching = TrainingWatch(1000)
    yield watching
    watching.close()


def step(optimizer: torch.optim.Optimizer, *parameters: torch.Tensor) -> None:
    """Gradients of ones for these parameters, and a step of their optimizer."""
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.fixture(autouse=True)
def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers that other tests have left in this process are no part of what these tests count."""
    monkeypatch.setattr(owners, "REGISTRY", owners._Registry())


def test_large_tensors_of_an_optimizer_are_owned_in_lists_too() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(300, 501), torch.nn.Linear(501, 1200))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    flat, owned = flatten({"optimizer": optimizer}), OwnedTensors(SMALL_LEAF_BYTES)
    assert len(owned.of(flat)) == 6
    history = [torch.zeros(200, 300), torch.zeros(200, 300), torch.zeros(3)]
    next(iter(optimizer.state.values()))["history"] = history
    found = owned.of(flat)
    assert len(found) == 8 and all(found[each.data_ptr()] is each for each in history[:2])
    optimizer.state.clear()
    assert len(owned.of(flat)) == 2


# --- what is trained --------------------------------------------------------------------------------------------------


def new_parameters(count: int = 2) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(1000)) for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_what_a_step_writes_to_is_trained(watch: TrainingWatch, kind: str, options: dict[str, Any]) -> None:
    first, second = new_parameters()
    more = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)([first, second], lr=1e-3, **options, **more)
    assert watch.trained() == {}
    step(optimizer, first, second)
    step(optimizer, first, second)  # the state is made in the first step
    state = [v for v in optimizer.state[first].values() if isinstance(v, torch.Tensor) and v.numel() == 1000]
    assert {each.data_ptr() for each in (first, second, *state)} <= watch.trained().keys()
    assert watch.trained() == {}, "no step since"


def test_what_is_not_trained(watch: TrainingWatch) -> None:
    parameters = new_parameters(5)
    frozen, without_grad, removed, trained, dead = parameters
    optimizer = torch.optim.SGD([frozen, without_grad, removed, trained], lr=0.1, momentum=0.9)
    other = torch.optim.SGD([dead], lr=0.1)
    mine = torch.zeros(1000)
    step(optimizer, frozen, removed, trained)
    optimizer.state[trained]["mine"] = mine
    watch.trained()
    step(optimizer, frozen, removed, trained)
    step(other, dead)
    assert {each.data_ptr() for each in (frozen, removed, trained, dead)} <= watch.trained().keys()
    frozen.requires_grad_(False)
    optimizer.param_groups[0]["params"] = [frozen, without_grad, trained]
    del other
    gc.collect()
    step(optimizer, trained)
    found = watch.trained()
    assert trained.data_ptr() in found and optimizer.state[trained]["momentum_buffer"].data_ptr() in found
    for each in (frozen, without_grad, removed, dead, mine, optimizer.state[frozen]["momentum_buffer"]):
        assert each.data_ptr() not in found


def test_sparse_gradients_train_rows_only(watch: TrainingWatch) -> None:
    table = torch.nn.Embedding(500, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert watch.trained() == {}
