"""Which leaves share bytes, and which of them cannot all hold what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.tree.ties import conflicting, overlapping

BUFFER = torch.zeros(8, 4)
PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "rows": lambda: (BUFFER[:4], BUFFER[2:6]),
    "a tensor and an array": lambda: (BUFFER, BUFFER.numpy()),
    "columns": lambda: (BUFFER[:, :3], BUFFER[:, 2:]),
    "every other row": lambda: (BUFFER[:4], BUFFER[::2]),
    "one element": lambda: (BUFFER[7, 3], BUFFER[4:]),
    "bytes of an element": lambda: (BUFFER[0, :1], BUFFER.view(torch.uint8)[0, 3:4]),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_leaves_that_share_a_byte(name: str) -> None:
    one, other = PAIRS[name]()
    assert overlapping({3: one, 5: torch.zeros(9), 7: other}) == [3, 7]


def test_columns_of_one_matrix_do_not_share_memory() -> None:
    """As q, k and v of a fused projection."""
    matrix, array = torch.zeros(64, 96), np.zeros((5, 9))
    columns = dict(enumerate(matrix.split(32, dim=1)))
    assert overlapping(columns) == []
    assert overlapping({0: array[:, ::2], 1: array[:, 1::2], 2: array[::-1, 1::2]}) == [1, 2]
    assert overlapping({}) == overlapping({0: torch.zeros(0), 1: torch.zeros(3)}) == []


def test_what_would_be_overwritten_is_named_and_nothing_stays_changed() -> None:
    buffer = torch.arange(8.0)
    live = {1: buffer[:5], 2: buffer[4:], 3: torch.zeros(2)}
    wanted = {1: torch.full((5,), 1.0), 2: torch.full((4,), 2.0), 3: torch.ones(2)}
    assert conflicting(live, wanted) == [1]
    assert buffer.tolist() == list(range(8)) and not live[3].any()


def test_what_is_wanted_alike_where_it_is_shared_can_be_had() -> None:
    buffer = np.arange(8.0)
    live = {1: buffer[:5], 2: buffer[4:][::-1]}
    assert conflicting(live, {1: np.array([1.0, 1, 1, 1, 2]), 2: np.array([3.0, 3, 3, 2])}) == []
    assert conflicting(live, {1: np.array([1.0, 1, 1, 1, -0.0]), 2: np.array([3.0, 3, 3, 0.0])}) == [1], "to the bit"
    assert buffer.tolist() == list(range(8))
