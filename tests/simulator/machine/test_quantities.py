"""Power and currencies, as machine files have them."""

from __future__ import annotations

import math

import pytest
from deeppart_simulator.machine.record import read_currency, read_watts


def test_watts_with_a_unit_and_without() -> None:
    assert [read_watts(value) for value in (700, 2500.0, "2.5 kW", "21 MW", "300 W")] == [700, 2500, 2500, 21e6, 300]
    assert math.isnan(read_watts("3 horses")) and math.isnan(read_watts("700"))


@pytest.mark.parametrize("value", [True, None, "many kW", "", [1]])
def test_what_is_no_power_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever reads the file says what is expected
        read_watts(value)


def test_currencies_are_short_and_no_markup() -> None:
    assert [read_currency(value) for value in ("USD", "€", "SBU-h")] == ["USD", "€", "SBU-h"]
    for value in ("", "US dollars", "[red]", "a\nb", 3, None):
        with pytest.raises(ValueError, match="currency"):
            read_currency(value)
