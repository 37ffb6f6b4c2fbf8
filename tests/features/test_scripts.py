"""Values and objects of real scripts: stored as data, restored in place, or refused by name."""

from __future__ import annotations

import collections
import dataclasses
import io
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import deeppart
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError, UnsupportedLeafError
from tests.features.script_files import bits
from tests.features.script_values import Level, Phase, Plan, Rights, Settings, containers, state
from tests.states import Box
from tests.unit.round_trip import config, restore, save
from tests.unit.trained import save_and_restore

# --- Values and objects of real scripts -------------------------------------------------------------------------------


def test_all_of_it_comes_back_in_place(tmp_path: Path) -> None:
    expected, live = bits(state(2)), state(0)
    save(tmp_path, state(2))
    before = live["in place"]
    objects = {name: id(item) for name, item in before.items()}
    inner = before["namespace"].settings
    deep, tensor, tags = inner.tags[1]["deep"], inner.weights, inner.tags
    rows = list(map(id, before["sets"]))
    factory = before["counts"].default_factory
    restore(tmp_path, live)
    assert bits(live) == expected
    assert live["in place"] is before and {name: id(item) for name, item in before.items()} == objects
    assert before["namespace"].settings is inner and inner.tags is tags and inner.weights is tensor
    assert tags[1]["deep"] is deep and list(map(id, before["sets"])) == rows
    assert before["counts"].default_factory is factory is list and before["counts"]["new"] == []
    assert inner.posts == 1, "no code of the class has run"
    assert live["values"]["at"].fold == 1


def test_it_comes_back_again_and_again_as_it_changes(tmp_path: Path) -> None:
    """The structure that is known from the last checkpoint does not hide what has changed in an object."""
    changing = state(1)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step in range(1, 6):
            place = changing["in place"]
            place["set"].add(step)
            place["sets"][3].clear()
            place["deque"].append(step)
            place["window"].append(-step)
            place["settings"].rate = step
            place["settings"].weights += 1
            place["namespace"].settings.tags[1]["deep"].append(step)
            place["counts"]["x"].append(step)
            place["stream"].write(b"z")
            place["octets"].append(step)
            place["keys"][Phase.TRAIN] += 1
            changing["plan"] = Plan(step, torch.ones(2) * step)
            changing["values"]["phase"] = [Phase.WARMUP, Phase.TRAIN][step % 2]
            if step == 4:  # another structure
                changing["in place"]["deque"] = collections.deque([1], maxlen=2)
                place["simple"].b = 1
            ck.checkpoint(changing, step=step).wait(timeout=200)
            changing["in place"]["set"].discard("a")  # after the call: not captured
            live = state(0)
            if step >= 4:
                live["in place"]["deque"] = collections.deque([1], maxlen=2)
            changing["in place"]["set"].add("a")
            ck.restore(live)
            assert bits(live) == bits(changing), step


def test_what_is_captured_is_what_was_there_at_the_call(tmp_path: Path) -> None:
    saved = state(1)
    expected = bits(state(1))
    with deeppart.Checkpointer(config(tmp_path, capture="lazy")) as ck:
        pending = ck.checkpoint(saved, step=1)
        place = saved["in place"]
        for item in (place["set"], place["deque"], place["counts"], place["octets"], place["window"]):
            item.clear()
        place["stream"].truncate(0)
        place["settings"].rate = place["simple"].a = 99
        pending.wait(timeout=200)
        live = state(0)
        ck.restore(live)
    assert bits(live) == expected


LOAD = """
import sys
import deeppart
loaded = deeppart.load({path!r})
assert "tests" not in {{name.partition(".")[0] for name in sys.modules}}
place = loaded["in place"]
print(loaded["values"]["phase"], loaded["values"]["rights"].value, loaded["plan"].steps, type(loaded["plan"]).__name__)
print(place["namespace"].settings.tags, place["deque"].maxlen, sorted(map(str, place["set"])), place["counts"]["x"])
print([str(key) for key in list(place["keys"])[:2]], place["stream"].tell(), type(loaded["values"]["version"]).__name__)
"""


def test_load_needs_nothing_of_the_script(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    script = LOAD.format(path=str(tmp_path / "ckpt"))
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "Phase.TRAIN 3 1 Plan",
        "[1, {'deep': [1]}] 9 ['(1, 1)', '1', 'None', 'a'] [1]",
        "['Phase.TRAIN', 'Level.LOW'] 1 TorchVersion",
    ]


def test_what_was_loaded_is_saved_as_what_it_stands_for(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    loaded = deeppart.load(tmp_path / "ckpt")
    loaded = pickle.loads(pickle.dumps(loaded))
    (tmp_path / "again").mkdir()
    save(tmp_path / "again", loaded)
    live = state(0)
    restore(tmp_path / "again", live)
    assert bits(live) == bits(state(1))
    assert bits(deeppart.load(tmp_path / "again" / "ckpt")) == bits(loaded)


def test_in_objects_they_come_back_as_copies(tmp_path: Path) -> None:
    """What an object's state_dict() gave is the object's: it gets new ones."""
    saved, live = Box(state(1)), Box(state(0))
    before = live.content["in place"]
    save(tmp_path, {"box": saved})
    restore(tmp_path, {"box": live})
    assert bits(live.content) == bits(state(1))
    assert live.content["in place"]["settings"] is not before["settings"] and before["settings"].rate == 0
    assert before["set"] == containers(0)["set"]


def test_a_class_may_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {"s": Settings(1), "l": Level.HIGH, "r": Rights.READ | Rights.WRITE})
    monkeypatch.setattr(Settings, "__module__", "moved")
    monkeypatch.setattr(Level, "__module__", "moved")
    live: dict[str, Any] = {"s": Settings(0), "l": Level.LOW, "r": Rights.READ}
    restore(tmp_path, live)
    assert live["s"].rate == 1 and live["l"] is Level.HIGH and live["r"] == Rights.READ | Rights.WRITE


# --- Random number generators and schedulers in a state, as the objects that they are ---------------------------------


GENERATORS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand(5, generator=g).tolist()),
    "PCG64": (np.random.default_rng, lambda g: g.random(5).tolist()),
    "Philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda g: g.standard_normal(3).tolist()),
    "MT19937": (np.random.MT19937, lambda g: g.random_raw(3).tolist()),
    "RandomState": (np.random.RandomState, lambda g: g.normal(size=3).tolist()),
    "random": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_go_on_where_they_were(tmp_path: Path, name: str) -> None:
    make, draw = GENERATORS[name]
    saved, live = make(1), make(2)
    draw(saved)
    state: dict[str, Any] = {"g": live, "l": [make(3)]}
    save_and_restore(tmp_path, {"g": saved, "l": [saved]}, state)
    assert state["g"] is live
    expected = draw(saved)
    assert draw(live) == expected and draw(state["l"][0]) == expected


def test_another_kind_of_generator_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {"g": np.random.MT19937(1)})
    with pytest.raises(StateError, match="path g"):
        restore(tmp_path, {"g": np.random.PCG64(1)})


class OldSWALR(swa_utils.SWALR):
    """As torch has it before 2.10: its state holds the function."""

    state_dict = lr_scheduler.LRScheduler.state_dict
    load_state_dict = lr_scheduler.LRScheduler.load_state_dict

    def __init__(self, optimizer: Any, swa_lr: float, anneal_strategy: Any) -> None:
        super().__init__(optimizer, swa_lr, anneal_strategy=anneal_strategy)
        self.anneal_func: Any = self._cosine_anneal if anneal_strategy == "cos" else self._linear_anneal
        del self._anneal_strategy


def schedule(kind: Any, strategy: str) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return kind(optimizer, 0.01, anneal_strategy=strategy)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("kinds", [(OldSWALR, OldSWALR), (OldSWALR, swa_utils.SWALR), (swa_utils.SWALR, OldSWALR)])
def test_swalr_keeps_its_strategy_with_every_torch(tmp_path: Path, strategy: str, kinds: tuple[Any, Any]) -> None:
    saved, live = schedule(kinds[0], strategy), schedule(kinds[1], "cos" if strategy == "linear" else "linear")
    for _ in range(3):
        saved.optimizer.step()
        saved.step()
    loaded = save_and_restore(tmp_path, {"s": saved}, {"s": live})
    assert live.anneal_func(0.3) == saved.anneal_func(0.3) and live.last_epoch == 3
    assert loaded["s"]["_anneal_strategy"] == strategy


def test_a_function_of_ones_own_is_refused(tmp_path: Path) -> None:
    scheduler = schedule(OldSWALR, "cos")
    scheduler.anneal_func = lambda t: t * t
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck, pytest.raises(UnsupportedLeafError, match="anneal_func"):
        ck.checkpoint({"s": scheduler}, step=1)


# --- Values and objects of real scripts that do not fit, or would lose something --------------------------------------


MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], type[Exception], str]] = {
    "a deque into a list": (lambda: collections.deque([1]), lambda: [1], StructureMismatchError, "a deque .checkpoint"),
    "a list into a deque": (lambda: [1], lambda: collections.deque([1]), StructureMismatchError, "a deque .live"),
    "many values": (lambda: collections.deque(range(9)), lambda: list(range(9)), StructureMismatchError, "a deque"),
    "another maxlen": (
        lambda: collections.deque([1], maxlen=3), lambda: collections.deque([1], maxlen=4),
        StructureMismatchError, "maxlen=3",
    ),
    "a set into a list": (lambda: {1}, lambda: [1], StructureMismatchError, "a value of type set"),
    "a set into a frozenset": (lambda: {1}, lambda: frozenset({1}), LeafMismatchError, "a value of type frozenset"),
    "a number into a set": (lambda: 5, lambda: {1}, LeafMismatchError, "a value of type set"),
    "a dict into a dataclass": (lambda: {"rate": 1}, Settings, StructureMismatchError, "dataclass"),
    "a dataclass into a dict": (Settings, lambda: {"rate": 1}, StructureMismatchError, "not known here"),
    "one dataclass into another": (Settings, Plan, StructureMismatchError, "not known here"),
    "one dataclass into another that is known": (
        lambda: [Settings(), Plan()], lambda: [Plan(), Settings()], StructureMismatchError, "dataclass",
    ),
    "an enum that is nowhere": (lambda: Phase.TRAIN, lambda: 5, StructureMismatchError, "register.Phase."),
    "two contents for one set": (lambda: [{1}, {2}], lambda: [{9}] * 2, StructureMismatchError, "several places"),
    "two contents for one deque": (
        lambda: [collections.deque([1]), collections.deque([2])], lambda: [collections.deque([9])] * 2,
        StructureMismatchError, "several places",
    ),
    "a changed frozen one in tuples": (lambda: (Plan(1),), lambda: (Plan(2),), StructureMismatchError, "tuples"),
    "a changed set in tuples": (lambda: ({1},), lambda: ((1,),), StructureMismatchError, "tuple of 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    saved, live, kind, said = MISMATCHES[name]
    in_tuples = "in tuples" in name
    save(tmp_path, saved() if in_tuples else {"w": torch.ones(2), "v": saved()})
    here = live() if in_tuples else {"w": torch.zeros(2), "v": live()}
    before = bits(here)
    with pytest.raises(kind, match=said):
        restore(tmp_path, here)
    assert bits(here) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("rate", "weights", "tags"), "lost made"),
        (("rate", "weights", "tags", "made", "more"), "got more"),
        (("rate", "weight", "tags", "made"), "lost weights and got weight "),
    ],
)
@pytest.mark.parametrize("where", ["there", "nested", "created"])
def test_fields_that_were_added_or_removed_are_named(
    tmp_path: Path, fields: tuple[str, ...], said: str, where: str
) -> None:
    kind: Any = dataclasses.make_dataclass("Settings", [(name, int, 0) for name in fields])
    saved = {"s": [Settings(1)], "known": Settings(1)}
    save(tmp_path, saved)
    live = {"s": [kind()] if where == "nested" else [None], "known": kind() if where != "created" else None}
    if where == "created":
        live["s"] = [kind()]
    with pytest.raises(StructureMismatchError, match=f"has {said}"):
        restore(tmp_path, live)


class Counted(collections.deque):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Listed(list):  # type: ignore[type-arg]
    name: str = ""


@dataclasses.dataclass
class Hidden:
    value: int = 0

    @property
    def other(self) -> int:
        return self.value


def hidden() -> Any:
    """A dataclass of which a field is a property: what is behind it is code."""
    made = type("Behind", (Hidden,), {"value": property(lambda self: 5, lambda self, value: None)})
    return made(3)


def attributed() -> Any:
    stream = io.BytesIO(b"a")
    stream.name = "x"
    return stream


def closed() -> Any:
    stream = io.BytesIO(b"a")
    stream.close()
    return stream


def looped() -> Any:
    found = Settings()
    found.tags.append(found)
    return found


def looped_deque() -> Any:
    found: Any = collections.deque()
    found.append([found])
    return found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a subclass of deque": (lambda: Counted([1]), "save list"),
    "a dataclass that is a list": (lambda: Listed("a"), "more state than attributes"),
    "a field that is a property": (hidden, "fields that are properties: value"),
    "attributes of a stream": (attributed, "has attributes"),
    "a closed stream": (closed, "closed"),
    "a set of objects": (lambda: {object()}, "builtins.object"),
    "a set of tensors": (lambda: {torch.ones(1)}, "torch.Tensor"),
    "a stream in a set": (lambda: {io.BytesIO()}, "BytesIO"),
    "a dataclass in itself": (looped, "contains itself"),
    "a deque in itself": (looped_deque, "contains itself"),
    "a function in a dataclass": (lambda: Settings(tags=[print]), "path v/tags/0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_something_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make, said = REFUSED[name]
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        with pytest.raises(UnsupportedLeafError, match=said) as caught:
            ck.checkpoint({"v": make()}, step=1)
        assert "path v" in str(caught.value)
        with pytest.raises(deeppart.StateError):
            ck.restore({"v": make()})
