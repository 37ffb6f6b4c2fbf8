"""The kinds of fields that machine files have: how each is read, and its possible values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deeppart.model.units import BYTES_WORDS, RATE_WORDS, SECONDS_WORDS, read_bytes, read_rate, read_seconds

from .quantities import read_currency, read_watts


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a field: how it is read, and its possible values.

    Attributes:
        read: from a TOML value.
        words: the expected value, for messages.
        least: smallest value.
        above: true if ``least`` itself is too small.
        most: largest value; infinity where there is none.
        endless: true if infinity is possible.
        text: true if it is no number.
    """

    read: Callable[[object], Any]
    words: str
    least: float = 0.0
    above: bool = False
    most: float = math.inf
    endless: bool = False
    text: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """The kind of a field that is one of some words.

    Attributes:
        allowed: all of them.
    """

    allowed: tuple[str, ...]


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError("a number")


def _whole(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("a whole number")


def _mtbf(value: object) -> float:
    return math.inf if value == "never" else read_seconds(value)


#: Bytes per second. Slower is nothing that moves checkpoints, but a rate whose unit was forgotten.
LEAST_RATE = 1e6
#: A file system, a drive, what it may take: smaller is a number whose unit was forgotten.
LEAST_BYTES = 1e6
#: Watts of a node: below there is none, above it is the whole machine.
LEAST_WATTS, MOST_WATTS = 10.0, 1e6
#: More share no node; the simulator lays out so many places on every node.
MOST_RANKS_PER_NODE = 4096
#: A hundred times as many as the largest machines have.
MOST_NODES = 10_000_000
RATE = Kind(read_rate, RATE_WORDS + ", at least 1 MB/s", least=LEAST_RATE)
SECONDS = Kind(read_seconds, SECONDS_WORDS + ", at least 0")
MTBF = Kind(_mtbf, SECONDS_WORDS + ', above 0, or "never"', above=True, endless=True)
COUNT = Kind(_whole, "a whole number, at least 1", least=1)
PER_NODE = Kind(_whole, f"a whole number from 1 to {MOST_RANKS_PER_NODE}", least=1, most=MOST_RANKS_PER_NODE)
NODES = Kind(_whole, f"a whole number from 1 to {MOST_NODES:,}", least=1, most=MOST_NODES)
SHARE = Kind(_number, "a number from 0 to below 1", most=math.nextafter(1.0, 0.0))
RATIO = Kind(_number, "a number above 0, at most 1.1", above=True, most=1.1)
PER_SECOND = Kind(_number, "a number per second, above 0", above=True)
LIFE = Kind(read_seconds, SECONDS_WORDS + ", above 0", above=True)
BYTES = Kind(read_bytes, BYTES_WORDS + ", at least 1 MB", least=LEAST_BYTES)
PER_DAY = Kind(_number, "a number per day, above 0", above=True)
CURRENCY = Kind(read_currency, 'a currency, such as "USD"', text=True)
MONEY = Kind(_number, "a number, at least 0")
WATTS = Kind(
    read_watts, 'watts of a node, such as 2500 or "2.5 kW", from 10 W to 1 MW', least=LEAST_WATTS, most=MOST_WATTS
)
#: The default of what a machine file need not say, and what depends on it is then not said either.
NOT_SAID = math.inf
DAY_S = 86_400.0
SHAPE = Kind(_number, "a number above 0, at most 100", above=True, most=100.0)


def of(kind: Kind, default: Any = None) -> Any:
    """A field of a kind; without a default it must be in every machine file."""
    if default is None:
        return field(metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})
