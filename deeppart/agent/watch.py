"""Detects that a job hangs because no rank makes a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from deeppart.progress import Progress

#: Steps before which nothing counts as a hang, because the first ones compile and load data: in the first watched
#: epoch, when the time of a step is not known yet, and in later ones.
_FIRST_STEPS, _AGAIN = 10, 3
#: A step may take this many times the median of the last ones.
_TIMES = 10.0
_SAMPLES = 200
#: Most seconds that one look adds to a silence: after a longer pause the machine or the job was suspended.
_LOOK_S = 2.0


class Hang(NamedTuple):
    """No rank has made a step for long.

    Attributes:
        ranks: the ranks furthest behind.
        silent_s: seconds since the last report of any rank.
        step_s: median time of a step before.
    """

    ranks: tuple[int, ...]
    silent_s: float
    step_s: float


class HangWatch:
    """Watches the ranks of a job.

    Args:
        least_s: shortest silence in seconds that counts as a hang; None: hangs are not detected.
    """

    def __init__(self, least_s: float | None) -> None:
        self._least_s = least_s
        self._steps_s: deque[float] = deque(maxlen=_SAMPLES)
        self.begin()

    def begin(self) -> None:
        """Start a new epoch."""
        self._seen: Sequence[Progress] = ()
        self._trained, self._trained_at_s = -1, 0.0
        self._looked_s, self._silent_s = math.inf, 0.0

    def look(self, ranks: Sequence[Progress], now_s: float) -> Hang | None:
        """Evaluate the progress of all ranks at ``now_s``, by any clock of this process. Returns a hang, or None."""
        trained, first = max(each.trained for each in ranks), _AGAIN if self._steps_s else _FIRST_STEPS
        if trained > self._trained:
            if self._trained >= first:
                self._steps_s.append((now_s - self._trained_at_s) / (trained - self._trained))
            self._trained, self._trained_at_s = trained, now_s
        is_silent = list(ranks) == self._seen and not any(each.pauses for each in ranks)
        self._silent_s = self._silent_s + min(max(now_s - self._looked_s, 0.0), _LOOK_S) if is_silent else 0.0
        self._seen, self._looked_s = list(ranks), now_s
        if self._least_s is None or not self._steps_s or trained < first:
            return None
        step_s = median(self._steps_s)
        if self._silent_s <= max(self._least_s, _TIMES * step_s):
            return None
        least = min(each.trained for each in ranks)
        return Hang(tuple(rank for rank, each in enumerate(ranks) if each.trained == least), self._silent_s, step_s)
