"""Objects: by their attributes, by what was registered for the caller's own types, and as ``load`` gives them."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import ConfigError, CorruptFileError
from deeppart.state import objects as registry
from deeppart.state.objects import (
    ABOUT,
    ObjectForm,
    data_of,
    form_of,
    make,
    put,
    takes,
)
from tests.features.script_values import Settings
from tests.states import Box
from tests.unit.round_trip import restore, save


@dataclasses.dataclass(slots=True)
class Base:
    a: int = 1


@dataclasses.dataclass(slots=True)
class Derived(Base):
    b: int = dataclasses.field(init=False)  # not set before it is known


@dataclasses.dataclass
class Guarded:
    x: int = 0

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("code of the class")

    def __init__(self) -> None:
        vars(self)["x"] = 1


def here() -> str:
    return "path v"


def known(item: Any) -> ObjectForm:
    form = form_of(item)
    assert form is not None
    return form


def test_slots_of_all_classes_and_those_that_are_not_set() -> None:
    item = Derived()
    form = known(item)
    assert data_of(item, form, here) == {"a": 1} and form.about[2] == ("a", "b")
    made = put(Derived(), form, {"a": 3, "b": 4}, here)
    assert (made.a, made.b) == (3, 4) and data_of(made, form, here) == {"a": 3, "b": 4}
    again = make(form, {"a": 5}, Derived, here)
    assert again.a == 5 and not hasattr(again, "b")
    assert takes(Derived, "b") and not takes(Derived, "c") and takes(Settings, "c")


def test_no_code_of_the_class_runs() -> None:
    item = Guarded()
    form = known(item)
    assert put(item, form, {"x": 7}, here) is item and item.x == 7
    assert make(form, {"x": 8}, Guarded, here).x == 8


ABOUTS: dict[str, tuple[Any, ...]] = {"deque": (2,), "dataclass": ("m", "C", ("x",)), "registered": ("nobody",)}


@pytest.mark.parametrize("kind", ABOUT)
@pytest.mark.parametrize("data", [5, None, (1, 2), {1: 2}, {"a": 1, (): 2}, [1]], ids=str)
def test_data_from_a_file_that_do_not_fit_are_damage(kind: str, data: Any) -> None:
    form = ObjectForm(kind, ABOUTS.get(kind, ()))
    if kind == "registered":
        assert make(form, data, None, here) is data, "plain data, whatever they are"
    elif kind == "deque" and data == [1]:
        assert make(form, data, None, here) == collections.deque([1], maxlen=2)
    else:
        with pytest.raises(CorruptFileError, match="path v"):
            make(form, data, None, here)


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_name", {})


class Meter:
    def __init__(self, total: Any = 0.0, history: Any = ()) -> None:
        self.total, self.history = total, list(history)


class Better(Meter):
    pass


class Kind(enum.Enum):
    A = 1


@dataclasses.dataclass
class Point:
    x: int = 0


def take(meter: Meter, data: Any) -> None:
    meter.total, meter.history = data["total"], data["history"]


def register(**settings: Any) -> None:
    deeppart.register(
        Meter, lambda m: {"total": m.total, "history": m.history}, lambda data: Meter(**data), **settings
    )  # fmt: skip


def test_an_object_is_made_anew_or_filled_if_there_is_a_function_for_that(tmp_path: Path) -> None:
    register(name="meter")
    save(tmp_path, {"m": Meter(torch.ones(2), [1, {"deep": torch.ones(1)}]), "l": [Meter(3)]})
    live: dict[str, Any] = {"m": Meter(torch.zeros(2), [0, {"deep": torch.zeros(1)}]), "l": [Meter(0)]}
    meter, tensor = live["m"], live["m"].total
    restore(tmp_path, live)
    assert live["m"] is not meter and live["m"].total is tensor and tensor.tolist() == [1, 1]
    assert live["m"].history[1]["deep"].item() == 1 and live["l"][0].total == 3
    registry._by_type, registry._by_name = {}, {}
    register(name="meter", into=take)
    live = {"m": Meter(torch.zeros(2), [0, {"deep": torch.zeros(1)}]), "l": [Meter(0)]}
    meters = live["m"], live["l"][0]
    restore(tmp_path, live)
    assert (live["m"], live["l"][0]) == meters and meters[0].total.tolist() == [1, 1] and meters[1].total == 3


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no type": (lambda: deeppart.register(5, repr, int), "only a type"),  # type: ignore[arg-type]
    "one function": (lambda: deeppart.register(Meter, repr), "two functions"),
    "no function": (lambda: deeppart.register(Meter), "two functions"),
    "not callable": (lambda: deeppart.register(Meter, repr, Meter, into=5), "two functions"),  # type: ignore[arg-type]
    "a dataclass with a name": (lambda: deeppart.register(Point, name="p"), "two functions"),
    "an enum with functions": (lambda: deeppart.register(Kind, repr, lambda data: Kind.A), "without functions"),
    "an empty name": (lambda: deeppart.register(Meter, repr, Meter, name=""), "no text"),
    "a name that cannot be shown": (lambda: deeppart.register(Meter, repr, Meter, name="a\0"), "no text"),
    **{
        kind.__name__: (lambda kind=kind: deeppart.register(kind, repr, kind), "stores by itself")  # type: ignore[misc]
        for kind in (int, dict, collections.deque, torch.Tensor, torch.Generator)
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_registered(name: str) -> None:
    make, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        make()
    assert not registry._by_type and not registry._by_name


def test_one_type_and_one_name_once() -> None:
    register(name="meter")
    for again in (lambda: register(name="other"), lambda: deeppart.register(Better, repr, Better, name="meter")):
        with pytest.raises(ConfigError, match="registered twice"):
            again()
    assert list(registry._by_name) == ["meter"]


def test_state_dict_is_called_once_per_checkpoint(tmp_path: Path) -> None:
    class Counting(Box):
        calls = 0

        def state_dict(self) -> Any:
            Counting.calls += 1
            return self.content

    with deeppart.Checkpointer(persistent_dir=tmp_path, timeout=20.0) as ck:
        for step in range(3):
            ck.checkpoint({"a": Counting({"x": torch.ones(2)})}, step=step).wait(timeout=200)
    assert Counting.calls == 3


@dataclasses.dataclass
class WithState:
    a: int = 1

    def state_dict(self) -> Any:
        return {"b": self.a}

    def load_state_dict(self, state: Any) -> None:
        self.a = state["b"]


def test_a_state_dict_comes_before_fields(tmp_path: Path) -> None:
    save(tmp_path, {"x": WithState(7)})
    assert deeppart.load(tmp_path / "ckpt") == {"x": {"b": 7}}
    live = {"x": WithState(0)}
    restore(tmp_path, live)
    assert live["x"].a == 7
