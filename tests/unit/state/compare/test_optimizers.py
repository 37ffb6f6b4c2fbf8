"""Which tensors an optimizer has, however it came to have them, and which it is seen to train."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from deeppart.state.compare import optimizers as owners
from deeppart.state.compare.optimizers import OwnedTensors, TensorIdentity, TrainingWatch
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES
from deeppart.state.tree.flatten import flatten
from tests.unit.state.compare.steps import step

Change = Callable[[torch.nn.Module, torch.optim.Optimizer], None]


@pytest.fixture(autouse=True)
def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers that other tests have left in this process are no part of what these tests count."""
    monkeypatch.setattr(owners, "REGISTRY", owners._Registry())


def stepped(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(2, 300)).sum().backward()
    optimizer.step()


def another_state(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def another_tensor(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    values = next(iter(optimizer.state.values()))
    values["exp_avg"] = values["exp_avg"].clone()


def state_gone(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def another_group(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(200, 300))]})


def another_memory(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()


def in_a_list(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    next(iter(optimizer.state.values()))["history"] = [torch.zeros(200, 300), torch.zeros(200, 300)]


def exchanged_in_a_list(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    in_a_list(net, optimizer)
    next(iter(optimizer.state.values()))["history"][1] = torch.ones(200, 300)


@pytest.mark.parametrize(
    "change",
    [stepped, another_state, another_tensor, state_gone, another_group, another_memory, in_a_list, exchanged_in_a_list],
)
def test_what_changes_between_two_looks_is_seen(change: Change) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(300, 501), torch.nn.Linear(501, 1200))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    stepped(net, optimizer)
    flat, owned = flatten({"optimizer": optimizer}), OwnedTensors(SMALL_LEAF_BYTES)
    assert len(owned.of(flat)) == 6
    for _ in range(2):
        change(net, optimizer)
        gc.collect()  # ids may be given anew
        found, anew = owned.of(flat), OwnedTensors(SMALL_LEAF_BYTES).of(flat)
        assert found.keys() == anew.keys()
        assert all(found[address] is tensor for address, tensor in anew.items())


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


# --- tensors told apart -----------------------------------------------------------------------------------------------


def test_with_another_storage_it_is_not_the_tensor_that_it_was() -> None:
    tensor = torch.zeros(4)
    identity = TensorIdentity(tensor)
    for other in (torch.zeros(4), tensor[:], tensor.detach(), 5, None):
        assert not identity.is_of(other)
    tensor.add_(1)
    assert identity.is_of(tensor), "what was written to it is another matter"
    tensor.data = torch.zeros(4)
    assert not identity.is_of(tensor)


def test_a_tensor_is_not_kept_alive_and_can_be_swapped() -> None:
    tensor, other = torch.zeros(4), torch.ones(4)
    identity = TensorIdentity(tensor)
    torch.utils.swap_tensors(tensor, other)  # refuses those with weak references
    assert not identity.is_of(tensor)
