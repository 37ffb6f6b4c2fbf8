"""Quantities of machine files that the library does not have: power, and money's currency."""

from __future__ import annotations

import math

_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
#: Longer is a sentence.
_LONGEST_CURRENCY = 8


def read_watts(value: object) -> float:
    """Watts from ``2500`` or ``"2.5 kW"``; NaN for another unit."""
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        return float(number) * _WATTS.get(unit, math.nan)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError("watts")


def read_currency(value: object) -> str:
    """A currency: a short word or sign, which tables print behind numbers."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_CURRENCY:
        raise ValueError("a currency")
    if not value.isprintable() or set(value) & set(" []"):
        raise ValueError("a currency without spaces and brackets")
    return value
