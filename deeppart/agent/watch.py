"""Finds out that a job hangs: no rank makes a step any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from deeppart.progress import Progress

#: Steps before which nothing is known: the first ones compile, load data, and make room.
_FIRST_STEPS = 10
#: A step may take so many times the median of the last ones.
_TIMES = 10.0
_SAMPLES = 200


class Hang(NamedTuple):
    """No rank has made a step for long.

    Attributes:
        rank: the one furthest behind.
        silent_s: since the last report of any rank.
        step_s: the median time of a step before.
    """

    rank: int
    silent_s: float
    step_s: float


class HangWatch:
    """Watches the ranks of one epoch.

    Args:
        least_s: silence that is never a hang, in seconds; None: nothing is.
    """

    def __init__(self, least_s: float | None) -> None:
        self._least_s = least_s
        self._steps_s: deque[float] = deque(maxlen=_SAMPLES)
        self._last: Progress | None = None

    def look(self, ranks: Sequence[Progress], now_s: float) -> Hang | None:
        """What all ranks have reported by now, on the clock of ``time.monotonic()``; a hang, or None."""
        ahead = max(ranks, key=lambda each: each.trained)
        last = self._last
        if last is None or ahead.trained > last.trained:
            if last is not None and last.trained >= _FIRST_STEPS:
                self._steps_s.append((ahead.at_s - last.at_s) / (ahead.trained - last.trained))
            self._last = ahead
        if self._least_s is None or not self._steps_s or any(each.pauses for each in ranks):
            return None
        silent_s, step_s = now_s - max(each.at_s for each in ranks), median(self._steps_s)
        if silent_s <= max(self._least_s, _TIMES * step_s):
            return None
        behind = min(range(len(ranks)), key=lambda rank: (ranks[rank].trained, ranks[rank].at_s))
        return Hang(behind, silent_s, step_s)
