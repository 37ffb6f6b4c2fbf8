"""Finds out that a job hangs: no rank makes a step any more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from deeppart.progress import Progress

#: Steps of an epoch before which nothing is a hang: the first ones compile, and load data. More before the first epoch
#: that is watched: nothing is known of the time of a step.
_FIRST_STEPS, _AGAIN = 10, 3
#: A step may take so many times the median of the last ones.
_TIMES = 10.0
_SAMPLES = 200
#: The most that one look adds to a silence: after more the machine has slept, or the job was suspended.
_LOOK_S = 2.0


class Hang(NamedTuple):
    """No rank has made a step for long.

    Attributes:
        ranks: those furthest behind.
        silent_s: since the last report of any rank.
        step_s: the median time of a step before.
    """

    ranks: tuple[int, ...]
    silent_s: float
    step_s: float


class HangWatch:
    """Watches the ranks of a job.

    Args:
        least_s: silence that is never a hang, in seconds; None: nothing is.
    """

    def __init__(self, least_s: float | None) -> None:
        self._least_s = least_s
        self._steps_s: deque[float] = deque(maxlen=_SAMPLES)
        self.begin()

    def begin(self) -> None:
        """An epoch begins."""
        self._ahead: Progress | None = None
        self._newest_s, self._looked_s, self._silent_s = 0.0, math.inf, 0.0

    def look(self, ranks: Sequence[Progress], now_s: float) -> Hang | None:
        """What all ranks have reported by now, on the clock of ``time.monotonic()``; a hang, or None."""
        ahead, last = max(ranks, key=lambda each: each.trained), self._ahead
        first = _AGAIN if self._steps_s else _FIRST_STEPS
        if last is None or ahead.trained > last.trained:
            if last is not None and last.trained >= first:
                self._steps_s.append((ahead.at_s - last.at_s) / (ahead.trained - last.trained))
            self._ahead = ahead
        newest_s = max(each.at_s for each in ranks)
        is_silent = newest_s == self._newest_s and not any(each.pauses for each in ranks)
        self._silent_s = self._silent_s + min(max(now_s - self._looked_s, 0.0), _LOOK_S) if is_silent else 0.0
        self._newest_s, self._looked_s = newest_s, now_s
        if self._least_s is None or not self._steps_s or ahead.trained < first:
            return None
        step_s = median(self._steps_s)
        if self._silent_s <= max(self._least_s, _TIMES * step_s):
            return None
        least = min(each.trained for each in ranks)
        return Hang(tuple(rank for rank, each in enumerate(ranks) if each.trained == least), self._silent_s, step_s)
