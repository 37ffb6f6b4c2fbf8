"""The least value of a function with one valley, wherever the search begins."""

from __future__ import annotations

import math

import pytest

from deeppart.plan.interval import least_of


@pytest.mark.parametrize("guess", [-4.0, 0.0, 2.9, 3.0, 40.0])
@pytest.mark.parametrize("power", [2, 4, 1.1])
def test_it_is_found_from_anywhere(guess: float, power: float) -> None:
    found = least_of(lambda x: abs(x - 3) ** power, -5.0, guess, 1e-4)
    assert found == pytest.approx(3.0, abs=0.02)


def test_at_the_end_where_the_function_only_rises() -> None:
    assert least_of(math.exp, -2.0, 5.0, 1e-3) == pytest.approx(-2.0, abs=0.01)
    assert least_of(math.exp, -2.0, -9.0, 1e-3) == pytest.approx(-2.0, abs=0.01)


def test_where_the_guess_is_infinitely_bad() -> None:
    def valley(x: float) -> float:
        return (x - 1) ** 2 if x < 4 else math.inf

    assert least_of(valley, -10.0, 30.0, 1e-4) == pytest.approx(1.0, abs=0.01)


def test_few_values_are_asked_for() -> None:
    asked: list[float] = []

    def valley(x: float) -> float:
        asked.append(x)
        return math.cosh(x - 7)

    least_of(valley, 0.0, 6.0, 0.003)
    assert len(asked) < 25
