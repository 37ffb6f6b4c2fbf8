"""Containers of values that have grown or shrunk since: as saved, in the very objects that are live."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import deeppart
from deeppart.state.tree.value_containers import LEAST_ITEMS, LEAST_ROWS
from tests.states import Box, difference
from tests.unit.state.rows import NESTED, changed, containers


@pytest.mark.parametrize("name", [name for name in NESTED if name not in ("some", "deep")])
def test_every_live_container_stays_the_same_object(ck: deeppart.Checkpointer, name: str) -> None:
    state = {"x": NESTED[name]}
    ck.checkpoint(state, step=1).wait()
    live = changed(state)
    before = containers(live)
    ck.restore(live)
    assert difference(state, live) is None
    assert all(one is other for one, other in zip(before, containers(live), strict=True))


@pytest.mark.parametrize(
    "live",
    [
        [],
        [[0]],
        [[0] * 20] + [[0] for _ in range(999)],
        [{"a": 1}] * 300,
        [(0,)] * 300,
        [None] * 300,
        [[[0]] for _ in range(300)],
        [1] * 20,
        None,
    ],
    ids=lambda live: f"{live!r:.20}",
)
def test_what_is_other_in_the_live_state_is_replaced(ck: deeppart.Checkpointer, live: Any) -> None:
    saved = [[place, place + 1] for place in range(300)]
    ck.checkpoint({"x": saved}, step=1).wait()
    state = {"x": live}
    ck.restore(state)
    assert difference({"x": saved}, state) is None
    assert live is None or state["x"] is live


def test_dicts_take_the_saved_entries_in_the_saved_order(ck: deeppart.Checkpointer) -> None:
    saved: dict[str, Any] = {
        "x": {place: OrderedDict(b=1, a=place) for place in range(300)},
        "y": [{"a": 1, "b": 2}] * 300,
    }
    ck.checkpoint(saved, step=1).wait()
    live: Any = {"x": {True: {"z": 1}} | {place: Counter("ab") for place in reversed(range(400))}}
    live["y"] = [{"b": 1, "c": 5} for _ in range(300)]
    row, counter = live["y"][3], live["x"][5]
    ck.restore(live)
    assert list(live["x"]) == list(range(300))
    assert live["y"][3] is row and live["x"][5] is counter
    assert [list(each) for each in (live["x"][5], row)] == [["b", "a"], ["a", "b"]]
    assert live["y"] == saved["y"] and all(dict(live["x"][key]) == dict(saved["x"][key]) for key in saved["x"])


def grown(saved: Any) -> Any:
    """The same some steps later, with arrays of its own."""
    later = copy.deepcopy(saved)
    if isinstance(later, list):
        return [*later, *copy.deepcopy(later[:2])]
    return type(later)([("first", copy.deepcopy(later["1"])), *later.items(), ("new", copy.deepcopy(later["2"]))])


#: Of so many items. The longer ones are saved as one value.
LENGTHS = (3, LEAST_ITEMS, LEAST_ROWS - 1, LEAST_ROWS)
GROWING: dict[str, Callable[[int], Any]] = {
    "values": lambda n: list(range(n)),
    "rows": lambda n: [{"i": i, "of": [i]} for i in range(n)],
    "arrays": lambda n: [torch.ones(2) for _ in range(n)],
    "rows of arrays": lambda n: [{"x": torch.ones(2), "i": (i,)} for i in range(n)],
    "dict": lambda n: {str(i): i for i in reversed(range(n))},
    "table": lambda n: OrderedDict((str(i), [i]) for i in reversed(range(n))),
    "counts": lambda n: Counter({str(i): i for i in range(n)}),
}


@pytest.mark.filterwarnings("ignore:.*removed, since dicts of small values become what was saved")
@pytest.mark.parametrize("kind", GROWING)
def test_what_has_grown_since_comes_back_as_saved_at_every_length(ck: deeppart.Checkpointer, kind: str) -> None:
    saved = {str(n): GROWING[kind](n) for n in LENGTHS}
    saved["object"] = Box({"list": copy.deepcopy(saved["3"])})
    live = {str(n): grown(saved[str(n)]) for n in LENGTHS}
    live["object"] = Box({"list": grown(saved["3"])})
    containers = {name: id(container) for name, container in live.items()}
    ck.checkpoint({"s": saved}, step=1).wait(timeout=200)
    if kind in ("dict", "table"):
        with pytest.raises(deeppart.errors.StructureMismatchError, match="large dict"):
            ck.restore({"s": live}, strict=False)
        small = {"3": copy.deepcopy(live["3"])}
        ck.restore({"s": small}, strict=False)
        assert set(small["3"]) == {"0", "1", "2", "first", "new"}, "what the checkpoint lacks stays"
    ck.restore({"s": live}, strict=kind in ("dict", "table", "values"))
    assert difference(saved, live) is None and {name: id(each) for name, each in live.items()} == containers


def test_entries_that_a_dict_loses_are_told(ck: deeppart.Checkpointer) -> None:
    live = {"x": torch.ones(1), "config": {"lr": 0.0, "new": True}}
    ck.checkpoint({"x": torch.ones(1), "config": {"lr": 1.0}}, step=1).wait(timeout=200)
    with pytest.warns(deeppart.DeeppartWarning, match="removed, .* config/new"):
        ck.restore(live)
    assert live["config"] == {"lr": 1.0}


def test_momentum_that_is_none_yet(ck: deeppart.Checkpointer) -> None:
    """Where the live state has None in a run, and tensors were saved, they are created."""
    ck.checkpoint({"s": {place: {"m": torch.ones(1)} for place in range(300)}}, step=1).wait()
    live: Any = {"s": {place: {"m": None} for place in range(300)}}
    row = live["s"][3]
    ck.restore(live)
    assert live["s"][3] is row and all(bool(each["m"] == 1) for each in live["s"].values())
