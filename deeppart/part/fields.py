"""The values allowed in the fields of headers and documents."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_HEX32 = re.compile(r"[0-9a-f]{32}", re.ASCII)


def is_hex32(text: object) -> bool:
    """True if ``text`` is 32 lower-case hex digits: an identity or an xxh3-128 digest."""
    return isinstance(text, str) and _HEX32.fullmatch(text) is not None


class Field(NamedTuple):
    """The values allowed in one field.

    Attributes:
        expected: description of these values for error messages.
        accepts: whether a value is allowed.
    """

    expected: str
    accepts: Callable[[Any], bool]


def number(least: int, most: int) -> Field:
    """An integer from ``least`` to ``most``; booleans are refused."""
    return Field(f"an integer from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def list_of(least: int, most: int, what: str) -> Field:
    """A list of ``least`` to ``most`` items, which the caller checks."""
    expected = f"a list of {what}, {least} to {most} of them"
    return Field(expected, lambda value: isinstance(value, list) and least <= len(value) <= most)


#: The caller checks the value.
ANYTHING: Final = Field("anything", lambda value: True)
HEX32: Final = Field("32 lower-case hex digits", is_hex32)
