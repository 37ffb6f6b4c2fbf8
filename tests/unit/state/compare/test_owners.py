"""Which tensors an optimizer has is known at every checkpoint, however it came to have them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch

from deeppart.state.compare import optimizers as owners
from deeppart.state.compare.optimizers import OwnedTensors
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES
from deeppart.state.tree.flatten import flatten

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
