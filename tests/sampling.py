"""Sweeps are run whole by ``--thorough``, and one part of them after another otherwise: today's, or ``--sample 3``.

A sweep is a test, or a loop in one, over everything of some kind: each operation, each damaged byte, each layout. An
ordinary run takes an even part of it that has something of each kind. Any ``SAMPLES`` runs with all the numbers have
taken everything once, at least.

Tests ask for their part in one of these ways:

- ``@pytest.mark.sweep(4, kinds=("level",))``: one in four of the parameters, and of each level one at least;
- ``@pytest.mark.now_and_then(4)``: all of the test, in one run of four. For what changes rarely and takes long. With
  ``together=True`` those of a file are in the same runs: they share what takes long;
- :func:`sampled` in a loop, :func:`examples` for Hypothesis, which draws other examples in every run anyhow.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import pytest

#: Runs with different numbers that take everything. Larger than any ``every``.
SAMPLES = 8
#: What is drawn of random examples, of those of a whole run.
_SHARE_OF_EXAMPLES = 3
#: Below this too few are left.
_FEWEST_EXAMPLES = 20

T = TypeVar("T")
_chosen: int | None = None


def choose(config: pytest.Config) -> int | None:
    """Settle which part is run, once: workers and ranks get it from the process that started them."""
    global _chosen
    if config.getoption("thorough"):
        _chosen = None
    else:
        number = config.getoption("sample")
        if number is None:
            number = config.option.sample = int(time.time() // 86_400) % SAMPLES + 1
        if not 1 <= number <= SAMPLES:
            raise pytest.UsageError(f"--sample {number}: there are 1 to {SAMPLES}")
        _chosen = number
    return _chosen


def take(number: int | None) -> None:
    """Run the part that another process has chosen."""
    global _chosen
    _chosen = number


def chosen() -> int | None:
    """The number of the part that is run; None for all of them."""
    return _chosen


def header() -> str:
    """What pytest says of it at the top."""
    if _chosen is None:
        return "sweeps: whole"
    return f"sweeps: sample {_chosen} of {SAMPLES}; again: --sample {_chosen}; whole: --thorough"


def part_of(items: Iterable[T], number: int | None, every: int, kind: Callable[[T], Hashable] | None = None) -> list[T]:
    """One in ``every`` items of each kind, at least one, in their order; all of them if the number is None.

    Kinds take turns: of two that have items alike, a run does not take the same ones.
    """
    assert 1 <= every <= SAMPLES, every
    everything = list(items)
    if number is None:
        return everything
    groups: dict[Hashable, list[int]] = {}
    for place, item in enumerate(everything):
        groups.setdefault(kind(item) if kind is not None else None, []).append(place)
    kept: set[int] = set()
    for turn, places in enumerate(groups.values()):
        stride = min(every, len(places))
        kept.update(places[(number + turn) % stride :: stride])
    return [item for place, item in enumerate(everything) if place in kept]


def sampled(items: Iterable[T], every: int, kind: Callable[[T], Hashable] | None = None) -> list[T]:
    """The same, of this run."""
    return part_of(items, _chosen, every, kind)


def examples(most: int) -> int:
    """How many random examples this run draws where a whole one draws so many."""
    return most if _chosen is None else min(most, max(_FEWEST_EXAMPLES, most // _SHARE_OF_EXAMPLES))


def is_due(name: str, number: int | None, every: int) -> bool:
    """Whether something of this name is in this part. Names take turns."""
    return number is None or (zlib.crc32(name.encode()) + number) % every == 0


def left_out(items: list[pytest.Item], number: int | None, one_in: int = 1) -> list[pytest.Item]:
    """Those that are not in this part.

    Args:
        one_in: of what would be in every part, take one in so many of each file.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    gone: set[pytest.Item] = set()
    for of_test in tests.values():
        marker = of_test[0].get_closest_marker("sweep")
        assert marker is not None
        part: list[pytest.Item] = part_of(of_test, number, marker.args[0], _kind)
        gone.update(set(of_test) - set(part))
    for item in items:
        marker = item.get_closest_marker("now_and_then")
        if marker is not None:
            name = _file(item) if marker.kwargs.get("together") else item.nodeid
            if not is_due(name, number, marker.args[0]):
                gone.add(item)
    if number is not None and one_in > 1:
        always = [item for item in items if not any(map(item.get_closest_marker, ("sweep", "now_and_then")))]
        some: list[pytest.Item] = part_of(always, number, one_in, _file)
        gone.update(set(always) - set(some))
    return [item for item in items if item in gone]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _kind(item: pytest.Item) -> tuple[str, ...]:
    """What of its parameters each part has all of, as its marker says."""
    marker = item.get_closest_marker("sweep")
    names = marker.kwargs.get("kinds", ()) if marker is not None else ()
    parameters = item.callspec.params  # type: ignore[attr-defined]
    return tuple(repr(parameters[name]) for name in names)
