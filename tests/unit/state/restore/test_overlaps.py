"""Live leaves that share memory, but not one inside the other: restored if both can be had, refused if not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from deeppart.state.restore.overlaps import overlapping
from deeppart.testing.states import difference

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


def config(path: Path) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(path))


def save(path: Path, state: Any) -> None:
    with deeppart.Checkpointer(config(path)) as checkpointer:
        checkpointer.checkpoint(state, 1).wait(timeout=200)


@pytest.mark.parametrize("name", SHARING)
def test_what_cannot_be_had_at_once_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    one, other = torch.randn(4, 4), torch.randn(4, 4)
    save(tmp_path, {"a": one, "b": other.numpy() if name == "numpy" else other, "c": torch.ones(3)})
    first, second = SHARING[name]()
    live = {"a": first, "b": second, "c": torch.zeros(3)}
    with (
        deeppart.Checkpointer(config(tmp_path)) as checkpointer,
        pytest.raises(StructureMismatchError, match="share some of their memory"),
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


def test_columns_of_one_matrix_do_not_share_memory() -> None:
    """As q, k and v of a fused projection."""
    matrix, array = torch.zeros(64, 96), np.zeros((5, 9))
    columns = dict(enumerate(matrix.split(32, dim=1)))
    assert overlapping(columns) == []
    assert overlapping({0: array[:, ::2], 1: array[:, 1::2], 2: array[::-1, 1::2]}) == [1, 2]
    assert overlapping({}) == overlapping({0: torch.zeros(0), 1: torch.zeros(3)}) == []
