"""Calls in a row between which nothing happens but what is known before: passed in one event instead of one by one.

Most calls of a campaign are alike: training goes on, a call blocks it, a few levels on the nodes are complete before
the next call. Where the job is at any time of such a row follows from sums. Flushes share the file system with other
jobs, and are never part of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from deeppart.model import Level

from .plan import Cadences, SizedJob


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose background is over before the next one."""

    blocked_s: float  # training waits for so long
    #: level -> seconds from when training goes on until it is complete, in this order
    done_s: tuple[tuple[str, float], ...]

    @property
    def busy_s(self) -> float:
        """Training is slower for so long."""
        return self.done_s[-1][1] if self.done_s else 0.0


def calm_call(world: SizedJob, due: tuple[str, ...]) -> Call | None:
    """The call that goes to some levels; None if it is flushed, and so not known before."""
    if Level.PERSISTENT in due:
        return None
    if not due:
        return Call(0.0, ())
    at_s = world.local_s + (world.stages["capture"] if world.times.lazy else 0.0)
    done = [(str(Level.LOCAL), at_s)]
    for level in world.redundant(due):
        at_s += world.stages[level]
        done.append((level, at_s))
    return Call(world.blocked_s, tuple(done))


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of training."""

    work_s: float  # of training between two calls, in seconds of the whole job
    rate: float  # work per second
    interference: float  # share of it that is lost while the background is busy

    def trains_s(self, busy_s: float) -> float:
        """Seconds from one call to the next, of which the background is busy for so many."""
        return self.work_s / self.rate + self.interference * busy_s

    def hides(self, busy_s: float) -> bool:
        """True if the background is over before the next call."""
        return busy_s < self.trains_s(busy_s)


def calm_row(world: SizedJob, cadences: Cadences, sequence: int, pace: Pace, most: int) -> list[Call]:
    """The calls from a number on that go to the nodes alone, each of them done before the next one; at most so many."""
    found = list[Call]()
    while len(found) < most:
        call = calm_call(world, cadences.due(sequence + len(found)))
        if call is None or not pace.hides(call.busy_s):
            break
        found.append(call)
    return found


@dataclass(frozen=True, slots=True)
class Passed:
    """A part of a row."""

    trained_s: float  # trained_s, blocked_s: how the time was spent
    blocked_s: float
    work_s: float  # that was done
    slowed_s: float  # work that was not done since the background was busy
    calls: int  # that have begun to be in the background
    done: int  # how many of the levels of the last of them are complete; of those before, all are
    blocking: bool  # true if training waits now


class Calm:
    """A row of calls, from the first one until the last one's background is over."""

    def __init__(self, pace: Pace, calls: Iterable[Call]) -> None:
        self._pace = pace
        self._calls = tuple(calls)
        self._begins = [0.0]
        for call, _ in pairwise(self._calls):
            self._begins.append(self._begins[-1] + call.blocked_s + pace.trains_s(call.busy_s))
        last = self._calls[-1]
        self.takes_s = self._begins[-1] + last.blocked_s + last.busy_s

    def after(self, elapsed_s: float) -> Passed:
        """Where the job is so long after the begin."""
        pace, calls = self._pace, self._calls
        elapsed_s = min(elapsed_s, self.takes_s)
        begun = bisect_right(self._begins, elapsed_s)
        last = calls[begun - 1]
        whole = elapsed_s == self.takes_s  # the sum may differ from its parts in the last digit
        since_s = elapsed_s - self._begins[begun - 1]
        trained_s = last.busy_s if whole else max(0.0, since_s - last.blocked_s)
        blocking = since_s < last.blocked_s and not whole
        blocked_s = sum(call.blocked_s for call in calls[: begun - 1]) + min(since_s, last.blocked_s)
        slow_s = min(trained_s, last.busy_s)
        if blocking:  # the call before is over, and this one has not begun to be in the background
            done = len(calls[begun - 2].done_s) if begun > 1 else 0
        else:
            done = sum(at_s <= trained_s for _, at_s in last.done_s)
        slowed_s = pace.rate * pace.interference * (sum(call.busy_s for call in calls[: begun - 1]) + slow_s)
        return Passed(
            trained_s=elapsed_s - blocked_s,
            blocked_s=blocked_s,
            work_s=(begun - 1) * pace.work_s + trained_s * pace.rate - pace.rate * pace.interference * slow_s,
            slowed_s=slowed_s,
            calls=begun - 1 if blocking else begun,
            done=done,
            blocking=blocking,
        )

    def complete(self, passed: Passed) -> Iterator[tuple[str, ...]]:
        """For each call that has begun to be in the background, the levels that are complete."""
        for number, call in enumerate(self._calls[: passed.calls], 1):
            done = call.done_s if number < passed.calls else call.done_s[: passed.done]
            yield tuple(level for level, _ in done)
