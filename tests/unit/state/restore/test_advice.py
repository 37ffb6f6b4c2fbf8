"""States that do not fit each other: the message says what was most likely meant."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import deeppart
from deeppart.errors import DeeppartWarning, StateError, StructureMismatchError
from tests.unit.round_trip import config

pytestmark = pytest.mark.usefixtures("working_directory")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def training(model: torch.nn.Module) -> dict[str, Any]:
    """After a step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": 3}


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel (``module``) and torch.compile (``_orig_mod``) do: the names get a prefix."""

    def __init__(self, inner: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, inner)


class Deep(torch.nn.Module):
    """A model of two parts, of which one may be wrapped."""

    def __init__(self, wrap: Callable[[torch.nn.Module], torch.nn.Module] = lambda inner: inner) -> None:
        super().__init__()
        self.inner = wrap(network())
        self.outer = torch.nn.Linear(2, 2)


def tensors_of(item: Any) -> list[torch.Tensor]:
    """Those of a module, a state dict or a dict of one module, in order."""
    if isinstance(item, torch.nn.Module):
        return list(item.state_dict().values())
    return [item] if isinstance(item, torch.Tensor) else [each for inner in item.values() for each in tensors_of(inner)]


# --- the calls --------------------------------------------------------------------------------------------------------


def test_an_optimizer_of_another_class_is_told(ck: deeppart.Checkpointer) -> None:
    state = training(network())
    model = state["model"]
    ck.checkpoint(state, step=1).wait("persistent", timeout=200)
    other = torch.optim.AdamW(model.parameters(), lr=0.5)
    with pytest.warns(deeppart.DeeppartWarning, match="optimizer: Adam in the checkpoint, AdamW here"):
        assert ck.restore({"model": model, "optimizer": other}) == 1
    with pytest.raises(StructureMismatchError, match="optimizer: Adam in the checkpoint, SGD here"):
        ck.restore({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.5)})

    class Mine(torch.optim.Adam):
        """Extends the class that was saved."""

    class Wrapping(torch.optim.Optimizer):
        """As accelerate's: hands all on to another optimizer."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.param_groups, self.state = optimizer.param_groups, optimizer.state

        def state_dict(self) -> dict[str, Any]:
            return self.optimizer.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.optimizer.load_state_dict(state_dict)

    for live in (Mine(model.parameters()), Wrapping(torch.optim.Adam(model.parameters()))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ck.restore({"model": model, "optimizer": live}) == 1


# --- states that are nested otherwise ---------------------------------------------------------------------------------


#: (saved, live), the advice
NESTING: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "model of a dict": (
        lambda: (training(network()), network()),
        "a level more, with the live state as 'model': restore({'model': state})",
    ),
    "dict of a model": (
        lambda: (network(), training(network())),
        "a level less: it was saved from what is 'model' here: restore(state['model'])",
    ),
    "a level more": (
        lambda: ({"train": training(network())}, training(network())),
        "a level more, with the live state as 'train': restore({'train': state})",
    ),
    "the model alone, of the state of an application": (
        lambda: ({"app": training(network())}, {"model": network()}),
        "a level more, with the live state as 'app': restore({'app': state})",
    ),
    "other names": (
        lambda: ({"model": network(), "epoch": 1}, {"net": network()}),
        "the checkpoint has the keys 'model', 'epoch': give restore() a dict with them, or rename=",
    ),
}
#: What was saved and what is live, of one model; the wrappers alone differ.
WRAPPED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "DDP was saved": lambda: ({"model": Wrapped(network(), "module")}, {"model": network()}),
    "DDP is live": lambda: ({"model": network()}, {"model": Wrapped(network(), "module")}),
    "compiled is live": lambda: (Wrapped(network(), "_orig_mod"), network()),
    "a part is compiled now": lambda: ({"m": Deep()}, {"m": Deep(lambda inner: Wrapped(inner, "_orig_mod"))}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_are_looked_through_and_it_is_told(ck: deeppart.Checkpointer, name: str) -> None:
    saved, live = WRAPPED[name]()
    ck.checkpoint(saved, 1).wait()
    with pytest.warns(DeeppartWarning, match="differ from those in the checkpoint by words that wrappers insert"):
        assert ck.restore(live) == 1
    assert ck.restored is not None and len(ck.restored.unwrapped) == 1
    pairs = zip(tensors_of(saved), tensors_of(live), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs) and len(tensors_of(live)) >= 4


@pytest.mark.parametrize("name", NESTING)
def test_states_that_are_nested_otherwise(ck: deeppart.Checkpointer, name: str) -> None:
    make, text = NESTING[name]
    saved, live = make()
    ck.checkpoint(saved, 1).wait()
    with pytest.raises(StateError) as caught:
        ck.restore(live)
    assert text in str(caught.value.todo)
    assert ck.restore(saved) == 1


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "steps"), [("dict", 0), ("object", 3), ("nested dict", 3)])
def test_what_the_optimizer_does_not_know_of(way: str, steps: int, tmp_path: Path) -> None:
    """The learning rate that comes back into a dict is not the optimizer's, stepped or not."""

    def make(lr: float, steps: int) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.Adam([parameter], lr=lr)
        for _ in range(steps):
            parameter.grad = torch.ones(4)
            optimizer.step()
        state: dict[str, Any] = {"p": parameter, "optimizer": optimizer if way == "object" else optimizer.state_dict()}
        return optimizer, {"run": state} if way == "nested dict" else state

    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint(make(0.5, 2)[1], 1).wait(timeout=200)
    optimizer, state = make(0.1, steps)
    with warnings.catch_warnings(record=True) as caught, deeppart.Checkpointer(config(tmp_path)) as ck:
        warnings.simplefilter("always")
        assert ck.restore(state) == 1
    told = [str(each.message) for each in caught if issubclass(each.category, deeppart.DeeppartWarning)]
    if way == "object":
        assert optimizer.param_groups[0]["lr"] == 0.5 and not told
        return
    assert optimizer.param_groups[0]["lr"] == 0.1, "nobody can reach it from the dict"
    (text,) = told
    assert ("run/optimizer" if way == "nested dict" else "optimizer") in text and "learning rate" in text
    optimizer.load_state_dict((state["run"] if way == "nested dict" else state)["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.5 and len(optimizer.state) == 1


# --- optimizers -------------------------------------------------------------------------------------------------------


class Training:
    """A model and its optimizer, which may have stepped."""

    def __init__(self, *, stepped: bool) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if stepped:
            self.model(torch.ones(1, 3)).sum().backward()
            self.optimizer.step()

    def state(self, how: str) -> dict[str, Any]:
        if how == "names":
            return {"model": self.model, "train": {"opt": get_optimizer_state_dict(self.model, self.optimizer)}}
        if how == "numbers":
            return {"model": self.model, "train": {"opt": self.optimizer.state_dict()}}
        return {"model": self.model, "train": {"opt": self.optimizer}}


def restored(root: Path, saved: dict[str, Any], live: dict[str, Any]) -> None:
    with deeppart.Checkpointer(persistent_dir=root) as ck:
        ck.checkpoint(saved, 1).wait()
    with deeppart.Checkpointer(persistent_dir=root) as ck:
        ck.restore(live)


NAMED_OR_NUMBERED = "has the optimizer itself, whose state numbers"
NUMBERED_OR_NAMED = r"what get_optimizer_state_dict\(\) gave, which names"


@pytest.mark.parametrize("way", ["object", "numbers"])
def test_names_where_numbers_were_saved_and_numbers_where_names_were(tmp_path: Path, way: str) -> None:
    states = [Training(stepped=True).state(each) for each in (way, "names")]
    with pytest.raises(StructureMismatchError, match=NAMED_OR_NUMBERED):
        restored(tmp_path / "numbers", *states)
    with pytest.raises(StructureMismatchError, match=NUMBERED_OR_NAMED):
        restored(tmp_path / "names", *reversed(states))


def test_a_new_optimizer_takes_names_in_the_order_of_its_parameters(tmp_path: Path) -> None:
    """As torch's own load_state_dict does."""
    saved, live = Training(stepped=True), Training(stepped=False)
    restored(tmp_path, saved.state("names"), live.state("object"))
    moments = [[each.optimizer.state[x]["exp_avg"] for x in each.model.parameters()] for each in (saved, live)]
    assert all(torch.equal(one, other) for one, other in zip(*moments, strict=True))


def test_what_nobody_takes_is_told(tmp_path: Path) -> None:
    """A scheduler that is forgotten in the state: its learning rate would be wrong, without a word."""
    training = Training(stepped=True)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)
    live = Training(stepped=True).state("object")
    with pytest.warns(DeeppartWarning, match=r"left in the checkpoint, .* no such key: scheduler\."):
        restored(tmp_path / "beside", training.state("object") | {"scheduler": scheduler}, live)
    assert "scheduler" not in live
    live["more"] = {"n": 0}
    with pytest.warns(DeeppartWarning, match=r"has nothing at more/scheduler \(StepLR\): .* is a dict now"):
        saved = training.state("object") | {"more": {"scheduler": scheduler, "n": 1}}
        restored(tmp_path / "inside", saved, live)
    assert live["more"]["scheduler"]["last_epoch"] == 0
