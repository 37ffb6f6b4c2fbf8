"""A saved run in the live one: every live container stays the object that it is."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StateError, StructureMismatchError
from deeppart.state.restore.filling import fill, places
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


def test_lists_in_tuples_in_dicts_stay_the_same_objects() -> None:
    saved = [{"a": ([place], {"b": place}), "c": OrderedDict(x=[1]), "d": Counter("a")} for place in range(300)]
    live = changed(saved)
    before = containers(live)
    filled = [each for each, _ in places(live, saved)]
    assert {id(each) for each in filled} == {id(each) for each in before}
    assert fill(live, saved) is live
    assert difference(saved, live) is None
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
    saved = {"x": {place: OrderedDict(b=1, a=place) for place in range(300)}, "y": [{"a": 1, "b": 2}] * 300}
    ck.checkpoint(saved, step=1).wait()
    live: Any = {"x": {True: {"z": 1}} | {place: Counter("ab") for place in reversed(range(400))}}
    live["y"] = [{"b": 1, "c": 5} for _ in range(300)]
    row, counter = live["y"][3], live["x"][5]
    ck.restore(live)
    assert list(live["x"]) == list(range(300))
    assert live["y"][3] is row and live["x"][5] is counter
    assert [list(each) for each in (live["x"][5], row)] == [["b", "a"], ["a", "b"]]
    assert live["y"] == saved["y"] and all(dict(live["x"][key]) == dict(saved["x"][key]) for key in saved["x"])


REFUSED: dict[str, tuple[Any, Any]] = {
    "a value": (NESTED["lists"], 7),
    "a dict for a list": (NESTED["lists"], {"a": 1}),
    "a dict of rows for a list of rows": (NESTED["lists"], NESTED["table"]),
    "tensors for rows": (NESTED["lists"], [torch.ones(1)] * 300),
    "a tensor in a row": (NESTED["lists"], [[torch.ones(1)]] * 300),
    "rows for tensors": ([torch.ones(1)] * 300, NESTED["lists"]),
    "rows for rows with tensors": ([[torch.ones(2)]] * 300, NESTED["lists"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(ck: deeppart.Checkpointer, name: str) -> None:
    saved, live = REFUSED[name]
    ck.checkpoint({"bad": saved, "good": torch.ones(1)}, step=1).wait()
    state = {"bad": live, "good": torch.zeros(1)}
    with pytest.raises(StateError, match="bad"):
        ck.restore(state)
    assert not state["good"].any(), "nothing has been touched"


ALIASED: dict[str, tuple[dict[str, Any], Callable[[list[Any]], dict[str, Any]]]] = {
    "rows of one run": ({"x": [[1]] * 300}, lambda row: {"x": [row] * 300}),
    "a row and a run": (
        {"x": [[1] * 9] * 300, "y": [1] * 9},
        lambda row: {"x": [[0] * 9 for _ in range(299)] + [row], "y": row},
    ),
    "a row and a short list": (
        {"x": [[1]] * 300, "y": [1]},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": row},
    ),
    "rows of two runs": (
        {"x": [[1]] * 300, "y": [[1]] * 300},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": [row] + [[0] for _ in range(299)]},
    ),
}


@pytest.mark.parametrize("name", ALIASED)
@pytest.mark.parametrize("same", [True, False])
def test_one_live_row_at_several_places(ck: deeppart.Checkpointer, name: str, same: bool) -> None:
    saved, make = ALIASED[name]
    if not same:
        saved = saved | {"x": [*saved["x"][:-1], [2]]}
    ck.checkpoint(saved, step=1).wait()
    live = make([0])
    if same:
        ck.restore(live)
        assert difference(saved, live) is None
        return
    with pytest.raises(StructureMismatchError, match="several places"):
        ck.restore(live)


def test_a_state_that_is_a_tuple_of_rows(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint(tuple([place] for place in range(300)), step=1).wait()
    live = tuple([0] for _ in range(300))
    ck.restore(live)
    assert live == tuple([place] for place in range(300))
    with pytest.raises(StructureMismatchError, match="all tuples"):
        ck.restore(tuple((0,) for _ in range(300)))
