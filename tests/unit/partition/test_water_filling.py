"""Water filling, by hand."""

from __future__ import annotations

import numpy as np

from deeppart.partition.strategies import fill


def test_water_filling() -> None:
    assert fill(np.array([0, 0, 0]), 7).tolist() == [3, 2, 2]
    assert fill(np.array([5, 0, 2]), 4).tolist() == [0, 3, 1]
    assert fill(np.array([5, 0, 2]), 5).tolist() == [0, 4, 1]
    assert fill(np.array([9, 1]), 0).tolist() == [0, 0]
    # int64 products of level and ranks would wrap here.
    load = np.zeros(65_536, dtype=np.int64)
    load[0] = 2**60
    assert int(fill(load, 2**61).sum()) == 2**61
