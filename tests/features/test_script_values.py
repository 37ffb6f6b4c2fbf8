"""Values and objects of real scripts: stored as data, restored in place, loaded without the script."""

from __future__ import annotations

import collections
import dataclasses
import enum
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import LeafMismatchError
from deeppart.testing import Box
from tests.features import script_values
from tests.features.script_files import bits, config, restore, save
from tests.features.script_values import Level, Phase, Plan, Rights, Settings, state


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
    with deeppart.Checkpointer(dataclasses.replace(config(tmp_path), capture="lazy")) as ck:
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


def test_parts_are_loaded_by_their_paths(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    found = deeppart.load(
        tmp_path / "ckpt", keys=["in place/deque/1", "in place/settings/rate", "in place/keys/Phase.TRAIN", "*/level"]
    )
    place = found["in place"]
    assert place["deque"].maxlen == 9 and len(place["deque"]) == 1 and vars(place["settings"]) == {"rate": 1}
    assert list(map(str, place["keys"])) == ["Phase.TRAIN"] and found["values"]["level"].value == 3


def test_in_objects_they_come_back_as_copies(tmp_path: Path) -> None:
    """What an object's state_dict() gave is the object's: it gets new ones."""
    saved, live = Box(state(1)), Box(state(0))
    before = live.content["in place"]
    save(tmp_path, {"box": saved})
    restore(tmp_path, {"box": live})
    assert bits(live.content) == bits(state(1))
    assert live.content["in place"]["settings"] is not before["settings"] and before["settings"].rate == 0
    assert before["set"] == containers_of(0)["set"]


def containers_of(seed: int) -> dict[str, Any]:
    return script_values.containers(seed)


def test_what_is_only_in_tuples_is_filled_where_it_can_change(tmp_path: Path) -> None:
    saved: Any = {1, 2}, (Plan(3), collections.deque([1]))
    live: Any = {7}, (Plan(3), collections.deque())
    save(tmp_path, saved)
    restore(tmp_path, live)
    assert bits(live) == bits(saved)


def test_a_class_may_have_moved_and_must_be_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {"s": Settings(1), "l": Level.HIGH, "r": Rights.READ | Rights.WRITE})
    monkeypatch.setattr(Settings, "__module__", "moved")
    monkeypatch.setattr(Level, "__module__", "moved")
    live: dict[str, Any] = {"s": Settings(0), "l": Level.LOW, "r": Rights.READ}
    restore(tmp_path, live)
    assert live["s"].rate == 1 and live["l"] is Level.HIGH and live["r"] == Rights.READ | Rights.WRITE

    others: dict[str, Any] = {
        "renamed": enum.IntEnum("Level", {"LOW": 1, "TOP": 3}),
        "other value": enum.IntEnum("Level", {"LOW": 1, "HIGH": 4}),
    }
    for other in others.values():
        with pytest.raises(LeafMismatchError, match="no such member"):
            restore(tmp_path, {"s": Settings(0), "l": other.LOW, "r": Rights.READ})

    class OneFlag(enum.Flag):
        READ = 1

    OneFlag.__qualname__ = "Rights"
    with pytest.raises(LeafMismatchError, match="no such member"):
        restore(tmp_path, {"s": Settings(0), "l": Level.LOW, "r": OneFlag.READ})
