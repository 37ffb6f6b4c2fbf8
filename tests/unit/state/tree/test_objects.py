"""Objects: by their attributes, by what was registered for the caller's own types, and as ``load`` gives them."""

from __future__ import annotations

import collections
import dataclasses
import enum
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import ConfigError, CorruptFileError, StateError, StructureMismatchError, UnsupportedLeafError
from deeppart.state import objects as registry
from deeppart.state.objects import (
    ABOUT,
    ObjectForm,
    SavedRecord,
    data_of,
    form_of,
    make,
    make_record,
    put,
    replaces,
    takes,
)
from deeppart.state.values import SavedMember
from deeppart.testing.states import Box
from tests.features.script_values import Plan, Settings


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


def test_records_of_megatron_are_no_values() -> None:
    kind: Any = dataclasses.make_dataclass("ShardedTensor", ["key", "global_offset"])
    kind.__module__ = "megatron.core.dist_checkpointing.mapping"
    item = kind("weight", (0, 4))
    form = form_of(item)
    assert form is not None
    with pytest.raises(UnsupportedLeafError, match=r"ShardedTensor(.|\n)*path w(.|\n)*deeppart\.interop\.megatron"):
        data_of(item, form, lambda: "path w")


def test_a_frozen_one_stays_as_long_as_it_is_the_same() -> None:
    item, mask = Plan(1, [1]), [1]
    form = known(item)
    assert put(item, form, data_of(item, form, here), here) is item and replaces(item, form)
    other = put(item, form, {"steps": 1, "mask": mask}, here)
    assert other is not item and other.mask is mask and not replaces(Settings(), known(Settings()))


def test_only_these_types_have_a_form() -> None:
    class Window(collections.deque):  # type: ignore[type-arg]
        pass

    assert [form_of(each) for each in (Window(), Settings, 5, {}, object())] == [None] * 5


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


def test_a_member_is_shown_like_one() -> None:
    red = SavedMember("m", "Outer.Color", "RED", 1)
    same = SavedMember("m", "Outer.Color", "RED", 1)
    assert (str(red), repr(red)) == ("Color.RED", "<Outer.Color.RED: 1>") and len({red, same}) == 1
    assert str(SavedMember("m", "Flags", None, 6)) == "Flags.6"
    assert repr(SavedMember("m", "C", "A", None, has_value=False)) == "<C.A>"
    assert pickle.loads(pickle.dumps(red)) == red


def test_a_record_has_the_name_of_its_class() -> None:
    one, other = (make_record("m", "Outer.Config", ("lr",), {"lr": lr, "__class__": 5}) for lr in (1, 2))
    assert type(one) is type(other) and isinstance(one, SavedRecord) and type(one).__name__ == "Config"
    assert vars(one) == {"lr": 1, "__class__": 5} and one != other
    again = pickle.loads(pickle.dumps(one))
    assert again == one and type(again).saved_class == ("m", "Outer.Config", ("lr",))


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


def save(directory: Path, state: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=directory, timeout=20.0) as ck:
        ck.checkpoint(state, step=1).wait(timeout=100)


def restore(directory: Path, state: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=directory, timeout=20.0) as ck:
        ck.restore(state)


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


def test_load_gives_the_object_or_its_data(tmp_path: Path) -> None:
    register(name="meter")
    save(tmp_path, {"m": Meter(3, [1, 2])})
    assert type(deeppart.load(tmp_path)["m"]) is Meter and deeppart.load(tmp_path)["m"].history == [1, 2]
    assert deeppart.load(tmp_path, keys="m/total") == {"m": {"total": 3}}, "a part of its data makes no object"
    registry._by_type, registry._by_name = {}, {}
    assert deeppart.load(tmp_path) == {"m": {"total": 3, "history": [1, 2]}}


def test_what_is_not_registered_any_more_is_refused(tmp_path: Path) -> None:
    register(name="meter")
    save(tmp_path, {"m": Meter(3), "l": [Meter(4)]})
    registry._by_type, registry._by_name = {}, {}
    lives: list[dict[str, Any]] = [{"m": None, "l": []}, {"m": {"total": 3, "history": []}, "l": []}]
    for live in lives:
        with pytest.raises(StructureMismatchError, match=r"register\(type, to, from_, name='meter'\)"):
            restore(tmp_path, live)
    with pytest.raises(UnsupportedLeafError, match=r"deeppart.register\(\)"):
        restore(tmp_path, {"m": Meter(), "l": []})
    register(name="another")
    with pytest.raises(StructureMismatchError, match="'meter'"):
        restore(tmp_path, {"m": Meter(), "l": []})
    registry._by_type, registry._by_name = {}, {}
    register(name="meter")
    live = {"m": None, "l": []}
    restore(tmp_path, live)
    assert live["m"].total == 3 and live["l"][0].total == 4


def test_it_counts_before_what_a_type_is_otherwise(tmp_path: Path) -> None:
    class Named(collections.OrderedDict):  # type: ignore[type-arg]
        title = ""

    def made(data: Any) -> Named:
        found = Named(data[1])
        found.title = data[0]
        return found

    deeppart.register(Named, lambda d: [d.title, dict(d)], made)
    deeppart.register(Point, lambda p: p.x, Point, name="point")
    named = Named(a=1)
    named.title = "t"
    save(tmp_path, {"d": named, "p": Point(4)})
    live: dict[str, Any] = {"d": Named(a=0), "p": Point(0)}
    restore(tmp_path, live)
    assert live["d"].title == "t" and live["d"]["a"] == 1 and live["p"] == Point(4)


def test_classes_alone_can_be_registered(tmp_path: Path) -> None:
    save(tmp_path, {"k": Kind.A, "p": Point(3), "l": [Kind.A] * 9, "d": {Kind.A: 1}})
    assert type(deeppart.load(tmp_path)["p"]) is not Point
    assert deeppart.register(Kind) is Kind and deeppart.register(Point) is Point
    assert deeppart.load(tmp_path) == {"k": Kind.A, "p": Point(3), "l": [Kind.A] * 9, "d": {Kind.A: 1}}
    live: dict[str, Any] = {"k": None, "p": None, "l": [], "d": {}}
    restore(tmp_path, live)
    assert live == {"k": Kind.A, "p": Point(3), "l": [Kind.A] * 9, "d": {Kind.A: 1}}


def failing(*_: Any) -> Any:
    raise RuntimeError("not today")


def test_what_the_functions_raise_says_where_it_was(tmp_path: Path) -> None:
    deeppart.register(Meter, lambda m: {"t": m.total}, failing, name="meter")
    save(tmp_path, {"a": [Meter(1)]})
    with pytest.raises(StateError, match="from_ of the registered type 'meter' failed") as caught:
        restore(tmp_path, {"a": [Meter(0)]})
    assert "not today" in str(caught.value) and "path a/0" in str(caught.value)
    with pytest.raises(StateError, match="from_ of the registered type"):
        deeppart.load(tmp_path)
    registry._by_type, registry._by_name = {}, {}
    deeppart.register(Meter, failing, Meter, name="meter")
    with pytest.raises(StateError, match="to of the registered type 'meter' failed"):
        restore(tmp_path, {"a": [Meter(0)]})
    registry._by_type, registry._by_name = {}, {}
    deeppart.register(Meter, lambda m: {"t": m.total}, lambda data: data, name="meter")
    with pytest.raises(StateError, match="has made something else"):
        restore(tmp_path, {"a": [Meter(0)]})


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
        for kind in (int, dict, list, set, Path, collections.deque, torch.Tensor, torch.Generator)
        if kind is not Path
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


def test_many_threads_register_each_type_once() -> None:
    kinds = [type(f"Type{number}", (), {}) for number in range(50)]
    refused: list[Exception] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait(timeout=30)
        for kind in kinds:
            try:
                deeppart.register(kind, repr, kind)
            except ConfigError as error:
                refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(refused) == 150 and len(registry._by_type) == len(registry._by_name) == 50


def test_state_dict_is_called_once_per_checkpoint(tmp_path: Path) -> None:
    class Counting(Box):
        calls = 0

        def state_dict(self) -> Any:
            Counting.calls += 1
            return self.content

    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
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
    assert deeppart.load(tmp_path) == {"x": {"b": 7}}
    live = {"x": WithState(0)}
    restore(tmp_path, live)
    assert live["x"].a == 7
