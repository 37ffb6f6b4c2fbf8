"""Short copies by address."""

from __future__ import annotations

import numpy as np

from deeppart.state.memory.copies import memmove


def test_bytes_move_to_where_they_are_to_be_and_nowhere_else() -> None:
    source, target = np.arange(100, dtype=np.uint8), np.full(100, 255, dtype=np.uint8)
    memmove(target.ctypes.data + 10, source.ctypes.data + 3, 20)
    assert target[10:30].tolist() == list(range(3, 23))
    assert (target[:10] == 255).all() and (target[30:] == 255).all()


def test_the_two_places_may_overlap() -> None:
    row = np.arange(50, dtype=np.uint8)
    memmove(row.ctypes.data + 5, row.ctypes.data, 40)
    assert row[5:45].tolist() == list(range(40))
