"""What comes back is what was saved, where torch or a live state of an odd shape would make something else of it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from tests.states import difference
from tests.unit.round_trip import config, restore, save

State = dict[str, Any]

# --- optimizers -------------------------------------------------------------------------------------------------------

KEPT: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.full((3,), 1.0 + 2**-20),
    "a list": lambda: [torch.full((3,), 1.0 + 2**-20), torch.tensor(16777217)],
    "a tuple": lambda: (torch.full((3,), 1.0 + 2**-20), 3, "text"),
    "a dict": lambda: {"at": torch.tensor(16777217), "inner": [torch.full((2,), 1.0 + 2**-20)]},
    "an ordered dict": lambda: collections.OrderedDict(b=torch.tensor(16777217), a=[1, 2]),
    "a text": lambda: "warm-up",
    "bytes": lambda: b"\x00\xff",
    "a list of numbers": lambda: [0.1, 3, None],
}


class Keeps(torch.optim.SGD):
    """Has more in its state than torch's own optimizers."""

    def __init__(self, parameters: Any, kept: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["kept"] = kept()


@pytest.mark.parametrize("has_state", [True, False], ids=["with state", "without"])
@pytest.mark.parametrize("name", KEPT)
def test_state_of_an_optimizer_keeps_its_types(name: str, has_state: bool, tmp_path: Path) -> None:
    """torch casts what it loads to the parameter's dtype, in containers too, and a text to a generator's."""
    save(tmp_path, {"optimizer": Keeps([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], KEPT[name])})
    optimizer = Keeps([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], KEPT[name])
    if not has_state:
        optimizer.state.clear()
    restore(tmp_path, {"optimizer": optimizer})
    (values,) = optimizer.state.values()
    assert difference(KEPT[name](), values["kept"]) is None


def test_lbfgs_of_low_precision_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def make() -> tuple[list[torch.nn.Parameter], torch.optim.LBFGS]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(5, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
        return parameters, torch.optim.LBFGS(parameters, lr=0.3, max_iter=3)

    def train(parameters: list[torch.nn.Parameter], optimizer: torch.optim.LBFGS) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(((parameter.float() - 1) ** 2).sum() for parameter in parameters)
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            return loss

        optimizer.step(closure)

    parameters, optimizer = make()
    train(parameters, optimizer)
    save(tmp_path, {"parameters": parameters, "optimizer": optimizer})
    train(parameters, optimizer)
    again, other = make()
    restore(tmp_path, {"parameters": again, "optimizer": other})
    train(again, other)
    assert all(map(torch.equal, parameters, again))


# --- modules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["module", "child"])
def test_a_module_with_a_state_dict_of_its_own(where: str, tmp_path: Path) -> None:
    """Not of its class's: what the function gives are copies, so filling them alone changes nothing."""

    def make(value: float) -> torch.nn.Module:
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(value)
        owner: Any = net if where == "module" else net[0]
        whole = owner.state_dict

        def copies(*arguments: Any, **options: Any) -> Any:
            return collections.OrderedDict((key, each.clone()) for key, each in whole(*arguments, **options).items())

        owner.state_dict = copies
        return net

    save(tmp_path, {"net": make(1.0)})
    net = make(0.0)
    restore(tmp_path, {"net": net})
    assert all(bool((parameter == 1.0).all()) for parameter in net.parameters())


# --- live containers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [list, dict])
@pytest.mark.parametrize("kind", ["tensors", "arrays", "numbers"])
def test_one_live_container_at_several_places_is_refused(kind: str, empty: type, tmp_path: Path) -> None:
    """``dict.fromkeys(names, [])``: the last place's contents would be at all of them."""

    def content(value: int) -> Any:
        item = {"tensors": torch.full((3,), value), "arrays": np.full(3, value), "numbers": value}[kind]
        return [item] if empty is list else {"w": item}

    save(tmp_path, {"history": {name: content(number) for number, name in enumerate(("train", "val"))}})
    live = {"history": dict.fromkeys(("train", "val"), empty())}
    with pytest.raises(StructureMismatchError, match="stands at several places"):
        restore(tmp_path, live)
    assert not live["history"]["train"]


def test_one_live_container_whose_contents_were_one_is_filled(tmp_path: Path) -> None:
    shared = [torch.full((3,), 7.0)]
    save(tmp_path, {"a": shared, "b": shared})
    one: list[Any] = []
    live: State = {"a": one, "b": one}
    restore(tmp_path, live)
    assert live["a"] is live["b"] and torch.equal(live["a"][0], shared[0]) and len(live["a"]) == 1


# --- keys and devices -------------------------------------------------------------------------------------------------


def test_the_default_device_is_the_callers_business(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.arange(5.0)})
    live: State = {}
    with torch.device("meta"):
        loaded = deeppart.load(tmp_path / "ckpt")
        with deeppart.Checkpointer(config(tmp_path)) as ck:
            assert ck.restore(live) == 1
            ck.checkpoint(live, 2).wait(timeout=200)
    for found in (loaded["w"], live["w"], deeppart.load(tmp_path / "ckpt")["w"]):
        assert found.device.type == "cpu" and torch.equal(found, torch.arange(5.0))
