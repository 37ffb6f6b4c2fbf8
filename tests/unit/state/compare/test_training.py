"""Which tensors an optimizer is seen to train."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from deeppart.state.compare.optimizers import TrainingWatch
from tests.unit.state.compare.steps import step

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
    assert first.data_ptr() in watch.trained(), "no step, and no write, since"
    with torch.no_grad():
        first[3] = 7
    assert first.data_ptr() not in watch.trained(), "somebody else has written to it"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_seen_every_time(watch: TrainingWatch) -> None:
    """Compiled or not, it calls the hooks at each step."""
    (parameter,) = new_parameters(1)
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    compiled = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        compiled()
        assert watch.trained().keys() == {parameter.data_ptr()}
        with torch.no_grad():
            parameter[3] = 7
        assert not watch.trained(), "no step since, but a write"


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
    trained.data = torch.zeros(1000)
    assert trained.data_ptr() not in watch.trained(), "it lies elsewhere now"


def test_sparse_gradients_train_rows_only(watch: TrainingWatch) -> None:
    table = torch.nn.Embedding(500, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert watch.trained() == {}
