"""Two small values, and two runs of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deeppart.offline.diff.records import Tolerance
from deeppart.offline.diff.values import compare_runs, same_small

NAN = float("nan")
ANY = Tolerance(1.0, 1e300)
SAME_NUMBER = Tolerance(0.0, 0.0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (2**53, 2**53 + 1),
        ("a", b"a"),
        (None, 0),
        (np.int64(1), 1),
        (torch.float16, ""),
    ],
)
def test_not_the_same(a: Any, b: Any) -> None:
    assert not same_small(a, b, None) and same_small(a, a, None) and same_small(b, b, None)


@pytest.mark.parametrize("value", [NAN, float("inf"), 1 << 4000, "\ud800", np.longdouble(1), np.datetime64("NaT", "s")])
def test_itself(value: Any) -> None:
    assert same_small(value, value, None) and same_small(value, value, ANY)


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "close"),
    [
        (0.0, -0.0, SAME_NUMBER, True),
        (1.0, 1.0 + 2**-52, SAME_NUMBER, False),
        (100.0, 101.0, Tolerance(0.01, 0.0), True),
        (101.0, 100.0, Tolerance(0.0, 0.5), False),
        (NAN, 1.0, ANY, False),
        (float("inf"), 1.0, ANY, False),
        (float("inf"), -float("inf"), ANY, False),
        (2**53, 2**53 + 1, SAME_NUMBER, False),
        (1 << 4000, (1 << 4000) + 1, Tolerance(0.0, 1.0), True),
        (1 << 4000, 1 << 4001, Tolerance(0.1, 0.0), False),
        (True, False, ANY, False),
        (1, 1.0, ANY, False),
        ("a", "b", ANY, False),
        (1 + 1j, 1 + 1.5j, Tolerance(0.0, 0.5), True),
        (np.float32(1), np.float32(1.5), Tolerance(0.0, 0.5), True),
        (np.float32(1), np.float64(1), ANY, False),
        (np.longdouble(1), np.longdouble(2), Tolerance(0.0, 0.5), False),
        (np.uint64(2**64 - 1), np.uint64(0), Tolerance(0.0, 1.0), False),
        (np.datetime64(1, "s"), np.datetime64(2, "s"), ANY, False),
    ],
)
def test_tolerance(a: Any, b: Any, tolerance: Tolerance, close: bool) -> None:
    assert same_small(a, b, tolerance) is close and same_small(b, a, tolerance) is close


def test_items_of_runs() -> None:
    a, b = list(range(1000)), list(range(1000))
    assert compare_runs(a, b, None) is None
    b[5], b[7] = -5, 8
    found = compare_runs(a, b, None)
    assert found is not None and (found.count, found.path, found.a, found.b) == (2, "5", "5", "-5")
    found = compare_runs(a, a[:998], None)
    assert found is not None and (found.count, found.path, found.a, found.b) == (2, "998", "998", "nothing")
    assert compare_runs(a, [*a[:-1], 1000], Tolerance(0.0, 1.0)) is None


def test_order_of_a_dict_does_not_count_and_its_keys_do() -> None:
    a: dict[Any, Any] = {f"k{i}": {"x": i, "y": [0.5]} for i in range(300)}
    assert compare_runs(a, dict(reversed(a.items())), None) is None
    b = {**a, "k7": {"x": 7, "y": [0.25]}, "more": {"x": 0, "y": [0.0]}}
    found = compare_runs(a, b, None)
    assert found is not None and (found.count, found.path, found.a, found.b) == (2, "k7/y/0", "0.5", "0.25")
    found = compare_runs({1: "a", "b": 2}, {True: "a", "b": 2}, None)
    assert found is not None and found.count == 2
