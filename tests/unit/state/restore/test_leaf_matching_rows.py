"""Containers of many rows matched with the live state: what does not fit, and one live row at several places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StateError, StructureMismatchError
from deeppart.testing.states import difference
from tests.unit.state.rows import NESTED


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


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
