"""Live leaves that share memory, but not one inside the other: restored if both can be had, refused if not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.comm import Comm
from deeppart.errors import StructureMismatchError
from deeppart.recovery.apply import arrays_to_fill
from deeppart.recovery.matching import Matched
from tests.states import difference
from tests.unit.recovery.opened import Opened, open_step
from tests.unit.round_trip import config, save
from tests.unit.sharded_states import checkpointer, on_ranks
from tests.unit.sharded_states import save as save_ranks

Pair = tuple[Any, Any]


def _rows() -> Pair:
    buffer = torch.zeros(8, 4)
    return buffer[:4], buffer[2:6]


def _numpy() -> Pair:
    tensor = torch.zeros(4, 4)
    return tensor, tensor.numpy()


def _interleaved() -> Pair:
    buffer = torch.zeros(4, 8)
    return buffer[:, :4], buffer[:, 2:6]


def _transposed() -> Pair:
    buffer = torch.zeros(4, 8)
    return buffer[:, :4], buffer[:, :4].t()


def _every_other() -> Pair:
    buffer = torch.zeros(8, 4)
    return buffer[:4], buffer[::2]


SHARING: dict[str, Callable[[], Pair]] = {
    "rows": _rows,
    "numpy": _numpy,
    "interleaved": _interleaved,
    "transposed": _transposed,
    "every other": _every_other,
}


@pytest.mark.parametrize("name", SHARING)
def test_what_cannot_be_had_at_once_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    one, other = torch.randn(4, 4), torch.randn(4, 4)
    save(tmp_path, {"a": one, "b": other.numpy() if name == "numpy" else other, "c": torch.ones(3)})
    first, second = SHARING[name]()
    live = {"a": first, "b": second, "c": torch.zeros(3)}
    with (
        deeppart.Checkpointer(config(tmp_path)) as checkpointer,
        pytest.raises(StructureMismatchError, match="share memory"),
    ):
        checkpointer.restore(live)
    assert not any(np.asarray(each).any() for each in live.values())


@pytest.mark.parametrize("name", SHARING)
def test_what_was_saved_so_comes_back_so(tmp_path: Path, name: str) -> None:
    first, second = SHARING[name]()
    first[:] = torch.randn(4, 4)
    second[1:3] = second[1:3] * 2
    state = {"a": first, "b": second}
    save(tmp_path, state)
    one, other = SHARING[name]()
    live = {"a": one, "b": other}
    with deeppart.Checkpointer(config(tmp_path)) as checkpointer:
        assert checkpointer.restore(live) == 1
    assert live["a"] is one and live["b"] is other
    assert difference(state, live) is None


#: What ranks hold of two leaves that were saved apart: who ties them, the second one's contents, the errors of ranks.
ON_RANKS: dict[str, tuple[str, float, list[str]]] = {
    "the same bytes on one rank": ("rank 0", 0.0, ["", ""]),
    "other bytes on one rank": ("rank 0", 1.0, ["StructureMismatchError", "RemoteRankError"]),
    "the same bytes on all ranks": ("all", 0.0, ["", ""]),
    "other bytes on all ranks": ("all", 1.0, ["StructureMismatchError"] * 2),
}


@pytest.mark.parametrize("case", ON_RANKS)
def test_ranks_look_together_at_what_some_of_them_tie(tmp_path: Path, case: str) -> None:
    """A rank that ties nothing takes part: nobody waits."""
    who, second, errors = ON_RANKS[case]
    saved = {"a": torch.zeros(100), "b": torch.full((100,), second)}
    save_ranks(tmp_path, [saved] * 2)

    def restored(comm: Comm) -> str:
        buffer = torch.full((150,), 7.0)
        live = {"a": torch.full((100,), 7.0), "b": torch.full((100,), 7.0)}
        if who == "all":
            live["b"] = live["a"]
        elif comm.rank == 0:
            live = {"a": buffer[:100], "b": buffer[50:]}
        error = ""
        with checkpointer(tmp_path, comm) as ck:
            try:
                ck.restore(live)
            except deeppart.DeeppartError as caught:
                error = type(caught).__name__
        assert difference({name: torch.full((100,), 7.0) for name in live} if error else saved, live) is None
        return error

    assert on_ranks(2, restored) == errors


# --- what is looked at, step by step ----------------------------------------------------------------------------------


def looked_at(path: Path, saved: dict[str, Any], live: dict[str, Any]) -> tuple[Opened, Matched]:
    save(path, saved)
    opened = open_step(path / "ckpt")
    return opened, opened.matched(live)


def test_a_saved_view_that_here_lies_in_another_leaf_is_refused_at_once(tmp_path: Path) -> None:
    """Its bytes are its owner's: written into the owner, they would be overwritten."""
    base, other = torch.arange(8.0), torch.zeros(8)
    saved = {"other": torch.ones(8), "owner": base, "view": base[2:6]}
    live = {"other": other, "owner": torch.zeros(8), "view": other.as_strided((4,), (2,), 0)}
    _, matched = looked_at(tmp_path, saved, live)
    with pytest.raises(StructureMismatchError) as caught:
        arrays_to_fill(matched)
    assert caught.value.found == "view would be overwritten by other"
