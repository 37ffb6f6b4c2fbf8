"""Modules, optimizers, schedulers, other objects: what ``load_state_dict`` gets, and what the live ones hold after."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import deeppart
from deeppart.errors import StructureMismatchError
from tests.states import difference
from tests.unit.trained import network, save_and_restore, train

# --- modules ----------------------------------------------------------------------------------------------------------


def test_a_module_is_restored_in_place_with_its_buffers(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    model(torch.randn(8, 4))  # BatchNorm statistics
    before = {name: (id(p), p.data_ptr()) for name, p in live.named_parameters()}
    loaded = save_and_restore(tmp_path, {"model": model}, {"model": live})
    assert difference(model, live) is None
    assert {name: (id(p), p.data_ptr()) for name, p in live.named_parameters()} == before
    assert live[1].num_batches_tracked == 1 and all(p.requires_grad for p in live.parameters())
    fresh = network(3)
    fresh.load_state_dict(loaded["model"])
    assert difference(model, fresh) is None


def test_a_state_dict_can_be_restored_into_a_module_and_the_reverse(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    save_and_restore(tmp_path / "a", {"model": model.state_dict()}, {"model": live})
    assert difference(model, live) is None
    live = network(2)
    save_and_restore(tmp_path / "b", {"model": model}, {"model": live.state_dict()})
    assert difference(model, live) is None


class Extra(torch.nn.Linear):
    """A module with extra state and a hook: restoring its tensors in place is not enough."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.note: Any = None
        self.seen = 0
        torch.nn.Module.register_load_state_dict_post_hook(
            self, lambda module, keys: setattr(module, "seen", module.seen + 1)
        )

    def get_extra_state(self) -> Any:
        return {"note": self.note}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"]


def test_modules_with_extra_state_and_hooks_get_their_load(tmp_path: Path) -> None:
    model: Any = torch.nn.ModuleDict({"e": Extra()})
    live: Any = torch.nn.ModuleDict({"e": Extra()})
    model["e"].note = ["remember", 3]
    weight = live["e"].weight
    save_and_restore(tmp_path, [model], [live])
    assert live["e"].note == ["remember", 3] and live["e"].seen == 1
    assert live["e"].weight is weight and difference(model, live) is None


def test_parametrized_averaged_and_shared_modules(tmp_path: Path) -> None:
    def build(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        linear = torch.nn.Linear(3, 3)
        torch.nn.utils.parametrizations.weight_norm(linear)
        average = torch.optim.swa_utils.AveragedModel(linear)
        if seed == 1:
            average.update_parameters(linear)
        return {"linear": linear, "average": average, "again": linear, "list": torch.nn.ParameterList([linear.bias])}

    state, live = build(1), build(2)
    save_and_restore(tmp_path, state, live)
    assert difference(state, live) is None
    assert live["average"].n_averaged == 1


# --- optimizers -------------------------------------------------------------------------------------------------------


def in_groups(p: Any) -> list[dict[str, Any]]:
    parameters = list(p)
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.5}]


class Averaging(torch.optim.Optimizer):
    """Has for each parameter something else than a dict, in another dtype than the parameter's."""

    def __init__(self, parameters: Any, in_list: bool) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.in_list = in_list

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.enable_grad():
            closure()
        for parameter in self.param_groups[0]["params"]:
            state: Any = self.state
            if parameter not in state:
                zeros = torch.zeros_like(parameter, dtype=torch.float64)
                state[parameter] = [zeros, 0] if self.in_list else zeros
            mean = state[parameter][0] if self.in_list else state[parameter]
            mean.mul_(0.9).add_(parameter.grad.double() / 3)
            parameter.data -= 0.01 * mean.to(parameter.dtype)
            if self.in_list:
                state[parameter][1] += 1


class Slow(torch.optim.Optimizer):
    """Wraps another optimizer, has its groups, and a ``state_dict()`` of a form of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.defaults = optimizer, optimizer.defaults
        self.state = defaultdict(dict)
        for when in ("pre", "post"):  # torch puts them around any step
            setattr(self, f"_optimizer_step_{when}_hooks", OrderedDict())

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        for parameter in self.param_groups[0]["params"]:
            slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
            parameter.data.copy_(slow.lerp_(parameter.detach(), 0.5))

    def state_dict(self) -> Any:
        slow = {
            (0, number): self.state[p] for number, p in enumerate(self.param_groups[0]["params"]) if p in self.state
        }
        return {"slow": slow, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self.state.clear()
        for (_, number), values in state_dict["slow"].items():
            self.state[self.param_groups[0]["params"][number]] = dict(values)


class Scaled(torch.optim.Optimizer):
    """Wraps another optimizer, and has no groups itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.scale = optimizer, 1.0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        self.scale *= 1.5

    def state_dict(self) -> Any:
        return {**self.optimizer.state_dict(), "scale": self.scale}

    def load_state_dict(self, state_dict: Any) -> None:
        self.scale = state_dict.pop("scale")
        self.optimizer.load_state_dict(state_dict)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD groups": lambda p: torch.optim.SGD(in_groups(p), lr=0.01),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.1, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.01, max_iter=3),
    "a list for each parameter": lambda p: Averaging(p, in_list=True),
    "a tensor for each parameter": lambda p: Averaging(p, in_list=False),
    "wraps one": lambda p: Slow(torch.optim.AdamW(p)),
    "has no groups": lambda p: Scaled(torch.optim.AdamW(p)),
}


@pytest.mark.parametrize("stepped", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_go_on_as_if_nothing_had_happened(tmp_path: Path, name: str, stepped: int) -> None:
    """Into one that has not stepped yet, and into one that has."""
    model, live = network(1), network(2)
    optimizer, other = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](live.parameters())
    train(model, optimizer, 3)
    train(live, other, stepped)
    save_and_restore(tmp_path, {"m": model, "o": optimizer}, {"m": live, "o": other})
    assert difference(model, live) is None
    assert difference(optimizer.state_dict(), other.state_dict(), ordered=False) is None
    train(model, optimizer, 2)
    train(live, other, 2)
    assert difference(model, live) is None, "the same steps from here on"


def test_some_parameters_without_state(tmp_path: Path) -> None:
    """Frozen parameters never get state: the keys of ``state`` have holes."""
    models = [network(1), network(2)]
    optimizers = []
    for model in models:
        model[0].weight.requires_grad_(False)
        optimizers.append(torch.optim.Adam(model.parameters()))
    train(models[0], optimizers[0], 2)
    save_and_restore(tmp_path, {"o": optimizers[0]}, {"o": optimizers[1]})
    assert 0 not in optimizers[1].state_dict()["state"]
    assert difference(optimizers[0].state_dict(), optimizers[1].state_dict(), ordered=False) is None


# --- schedulers -------------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    sides = []
    for steps in (3, 0):
        optimizer = torch.optim.SGD(network(1).parameters(), lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        sides.append({"o": optimizer, "s": scheduler})
        advance(sides[-1], steps)
    save_and_restore(tmp_path, *sides)
    assert difference(sides[0]["s"].state_dict(), sides[1]["s"].state_dict(), ordered=False) is None
    advance(sides[0], 4)
    advance(sides[1], 4)
    assert sides[0]["o"].param_groups[0]["lr"] == sides[1]["o"].param_groups[0]["lr"]


def advance(side: dict[str, Any], steps: int) -> None:
    for step in range(steps):
        side["o"].step()
        is_plateau = isinstance(side["s"], lr_scheduler.ReduceLROnPlateau)
        side["s"].step(1.0 + step) if is_plateau else side["s"].step()


# --- other objects ----------------------------------------------------------------------------------------------------


class Sampler:
    """Fresh tensors and containers from every state_dict(), as samplers and data loaders do."""

    def __init__(self, seed: int) -> None:
        self.position, self.order = seed, torch.randperm(10, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> Any:
        return {"position": self.position, "order": self.order.clone(), "history": [self.position]}

    def load_state_dict(self, state: Any) -> None:
        self.position, self.order = state["position"], state["order"].clone()


def test_objects_that_give_fresh_tensors(tmp_path: Path) -> None:
    saved, live = Sampler(7), Sampler(8)
    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
        for step in range(5):
            saved.position = step
            ck.checkpoint({"s": saved, "again": [saved]}, step=step).wait(timeout=200)
        ck.restore({"s": live, "again": [Sampler(9)]})
    assert live.position == 4 and torch.equal(live.order, saved.order)


def test_grad_scaler(tmp_path: Path) -> None:
    saved, live = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    save_and_restore(tmp_path, {"g": saved}, {"g": live})
    assert live.get_scale() == 8.0


class LowRank(torch.optim.Adam):
    """Not torch's: it may keep what it likes for a parameter."""


@pytest.mark.parametrize("kind", [torch.optim.Adam, LowRank])
def test_moments_of_another_parameter_are_refused_by_their_shape(tmp_path: Path, kind: type[torch.optim.Adam]) -> None:
    long, short = (torch.nn.Parameter(torch.ones(size)) for size in (5, 3))
    saved = kind([long, short])
    (long.sum() + short.sum()).backward()
    saved.step()
    live = {"optimizer": kind([short, long])}
    if kind is LowRank:
        save_and_restore(tmp_path, {"optimizer": saved}, live)
        return
    with pytest.raises(StructureMismatchError, match="or in another order") as caught:
        save_and_restore(tmp_path, {"optimizer": saved}, live)
    assert "optimizer/state/0/exp_avg" in str(caught.value) and not live["optimizer"].state
