"""A saved run in the live one: every live container stays the object that it is."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.testing.states import difference
from tests.unit.state.rows import NESTED, changed, containers


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


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
