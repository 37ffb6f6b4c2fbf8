"""Statistics of elements, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.offline import elements
from deeppart.offline.statistics import Stats, statistics
from deeppart.state.tensors.leaves import leaf_type
from tests.sampling import examples

NAN, INF = float("nan"), float("inf")


def stats(data: Any) -> Stats:
    found = statistics(data, leaf_type(data))
    assert found is not None
    return found


def exact(numbers: list[Any]) -> tuple[float, float, float]:
    """Mean, standard deviation, root mean square."""
    found = list(map(Fraction, numbers))
    mean = sum(found) / len(found)
    square = sum(each * each for each in found) / len(found)
    return float(mean), math.sqrt(square - mean * mean), math.sqrt(square)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12), st.integers(1, 5))
def test_integers_of_any_size(numbers: list[int], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "PIECE_ELEMENTS", piece)
        found = stats(torch.tensor(numbers))
    mean, std, rms = exact(numbers)
    assert (found.elements, found.zeros, found.nans) == (len(numbers), numbers.count(0), 0)
    assert (found.min, found.max) == (min(numbers), max(numbers))
    largest = max(map(abs, numbers))
    assert found.mean == pytest.approx(mean, rel=1e-15, abs=largest * 1e-18)
    assert found.std == pytest.approx(std, rel=1e-12, abs=1e-12) and found.rms == pytest.approx(rms, rel=1e-12)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12), st.integers(1, 5))
def test_floats_of_any_size(numbers: list[float], piece: int) -> None:
    """No square overflows, or is lost, that float64 itself does not need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "PIECE_ELEMENTS", piece)
        found = stats(torch.tensor(numbers, dtype=torch.float64))
    largest = max(map(abs, numbers))
    with_units = [Fraction(number) / Fraction(largest) for number in numbers] if largest else [Fraction(0)]
    mean, std, rms = exact(with_units)
    assert (found.min, found.max) == (min(numbers), max(numbers))
    assert found.mean is not None and found.std is not None and found.rms is not None
    if largest > 1e-290:
        assert isinstance(found.mean, float)
        assert found.mean / largest == pytest.approx(mean, rel=1e-9, abs=1e-12)
        assert found.std / largest == pytest.approx(std, rel=1e-6, abs=1e-8)
        assert found.rms / largest == pytest.approx(rms, rel=1e-9)


def test_what_is_no_number_is_counted_apart() -> None:
    found = stats(torch.tensor([1.0, NAN, -INF, INF, 3.0, -0.0, 0.0], dtype=torch.bfloat16))
    assert (found.elements, found.nans, found.infinities, found.zeros) == (7, 1, 2, 2)
    assert (found.min, found.max, found.mean) == (0.0, 3.0, 1.0)
    assert stats(torch.tensor([NAN, NAN])) == Stats(2, 2, 0, 0, None, None, None, None, None)
    assert stats(torch.empty(0, 3)) == Stats(0, 0, 0, 0, None, None, None, None, None)
    assert stats(torch.tensor(7)) == Stats(1, 0, 0, 0, 7, 7, 7.0, 0.0, 7.0)
