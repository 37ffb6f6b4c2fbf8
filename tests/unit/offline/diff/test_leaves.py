"""Two arrays, or two small values, of one type: how they differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.offline.diff.leaves import compare_arrays, compare_runs, same_small
from deeppart.offline.diff.records import ElementDifference, Tolerance
from deeppart.offline.elements import PIECE_ELEMENTS
from deeppart.state.tensors.leaves import TORCH_DTYPES, leaf_type

NAN, INF = float("nan"), float("inf")
SAME_NUMBER = Tolerance(0.0, 0.0)


def compared(a: Any, b: Any, tolerance: Tolerance | None = None) -> ElementDifference:
    found = compare_arrays(a, b, leaf_type(a), tolerance)
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_one_bit_of_any_type_is_seen_in_its_place(name: str) -> None:
    octets = torch.arange(5 * 7 * 16, dtype=torch.int32).to(torch.uint8)
    a = octets.clone().view(TORCH_DTYPES[name]) if name != "bool" else (octets % 2).view(torch.bool)
    assert compare_arrays(a, a.clone(), leaf_type(a), None) is None
    other = a.view(torch.uint8).clone()
    place = 3 * a.element_size()
    other[place] ^= 1
    found = compared(a, other.view(a.dtype))
    assert (found.differing, found.unlike, found.place) == (1, 1, (3,))


def test_bits_alone() -> None:
    a = torch.tensor([0.0, NAN, 1.0])
    b = torch.tensor([-0.0, 0.0, 1.0])
    b.view(torch.int32)[1] = 0x7FC12345
    found = compared(a, b)
    assert (found.differing, found.unlike, found.equal_numbers) == (2, 2, 2)
    assert (found.nans_only_a, found.nans_only_b, found.largest_absolute) == (0, 0, None)
    assert found.place == (0,) and math.copysign(1.0, found.b) == -1.0
    assert compared(a, b, SAME_NUMBER).differing == 0


def test_nan_on_one_side_and_infinities() -> None:
    a = torch.tensor([NAN, 1.0, INF, 1.0, 5.0])
    b = torch.tensor([1.0, NAN, -INF, INF, 5.0])
    found = compared(a, b)
    assert (found.differing, found.nans_only_a, found.nans_only_b) == (4, 1, 1)
    assert (found.largest_absolute, found.largest_relative) == (INF, INF)
    for tolerance in (SAME_NUMBER, Tolerance(0.5, 1e30)):
        assert compared(a, b, tolerance).differing == 4
    only_nan = compared(a[:2], b[:2])
    assert only_nan.place == (0,) and math.isnan(only_nan.a) and only_nan.b == 1.0
    assert only_nan.largest_absolute is None


def test_the_furthest_apart_is_shown_though_pieces_and_nans_come_first() -> None:
    a = torch.zeros(3, PIECE_ELEMENTS)
    b = a.clone()
    b[0, 0], b[1, 7], b[2, 9] = NAN, 3.0, -2.0
    found = compared(a, b)
    assert (found.place, found.b, found.largest_absolute) == ((1, 7), 3.0, 3.0)
    assert (found.differing, found.elements) == (3, 3 * PIECE_ELEMENTS)


def test_a_tolerance_is_of_the_larger_of_the_two() -> None:
    a, b = torch.tensor([100.0, 1.0, 0.0]), torch.tensor([101.0, 1.5, 1e-3])
    assert compared(a, b, Tolerance(0.01, 0.0)).differing == 2
    assert compared(a, b, Tolerance(0.01, 1e-3)).differing == 1
    assert compared(b, a, Tolerance(0.01, 1e-3)).differing == 1
    within = compared(a, b, Tolerance(0.5, 1e-3))
    assert (within.differing, within.unlike, within.largest_absolute) == (0, 3, None)


NAN = float("nan")
ANY = Tolerance(1.0, 1e300)


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


def test_order_of_a_dict_does_not_count_and_its_keys_do() -> None:
    a: dict[Any, Any] = {f"k{i}": {"x": i, "y": [0.5]} for i in range(300)}
    assert compare_runs(a, dict(reversed(a.items())), None) is None
    b = {**a, "k7": {"x": 7, "y": [0.25]}, "more": {"x": 0, "y": [0.0]}}
    found = compare_runs(a, b, None)
    assert found is not None and (found.count, found.path, found.a, found.b) == (2, "k7/y/0", "0.5", "0.25")
    found = compare_runs({1: "a", "b": 2}, {True: "a", "b": 2}, None)
    assert found is not None and found.count == 2
