"""Objects as data: their attributes without any of their code, and made again of what fits."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.tree.objects import ABOUT, Form, data_of, form_of, make, put, replaces, takes
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


def known(item: Any) -> Form:
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
    form = Form(kind, ABOUTS.get(kind, ()))
    if kind == "registered":
        assert make(form, data, None, here) is data, "plain data, whatever they are"
    elif kind == "deque" and data == [1]:
        assert make(form, data, None, here) == collections.deque([1], maxlen=2)
    else:
        with pytest.raises(CorruptFileError, match="path v"):
            make(form, data, None, here)
