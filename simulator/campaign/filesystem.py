"""A bandwidth that transfers share while they come and go: the parallel file system in a campaign."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

#: Bytes that do not count as left over, for the rounding of floating point.
_NOTHING = 1e-3


class Transfer:
    """One transfer under way.

    Attributes:
        done: succeeds when it is.
        most: its own limit in bytes per second.
        left: bytes still to go.
    """

    def __init__(self, env: simpy.Environment, nbytes: float, most: float) -> None:
        self.done = env.event()
        self.most = most
        self.left = nbytes
        self.rate = 0.0


class SharedBandwidth:
    """Everyone gets an equal part, up to their own limit."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float) -> None:
        self._env = env
        self._capacity = bytes_per_s
        self._active: list[Transfer] = []
        self._since = 0.0
        self._alarm = 0

    def begin(self, nbytes: float, most: float) -> Transfer:
        """Begin a transfer of so many bytes, at most so fast."""
        transfer = Transfer(self._env, nbytes, most)
        self._advance()
        self._active.append(transfer)
        self._share()
        return transfer

    def give_up(self, transfer: Transfer) -> None:
        """End a transfer that is not done."""
        if transfer in self._active:
            self._advance()
            self._active.remove(transfer)
            self._share()

    def set_capacity(self, bytes_per_s: float) -> None:
        """From now on there is so much in all."""
        self._advance()
        self._capacity = bytes_per_s
        self._share()

    def _advance(self) -> None:
        elapsed = self._env.now - self._since
        for transfer in self._active:
            transfer.left -= transfer.rate * elapsed
        self._since = self._env.now

    def _share(self) -> None:
        left, waiting = self._capacity, sorted(self._active, key=lambda transfer: transfer.most)
        for place, transfer in enumerate(waiting):
            transfer.rate = min(transfer.most, left / (len(waiting) - place))
            left -= transfer.rate
        self._alarm += 1
        if waiting:
            soonest = min(max(0.0, each.left) / each.rate for each in waiting)
            self._env.process(self._wake(soonest, self._alarm))

    def _wake(self, delay_s: float, alarm: int) -> Generator[Any, Any, None]:
        yield self._env.timeout(delay_s)
        if alarm != self._alarm:  # something came or went meanwhile, and has set another
            return
        self._advance()
        soonest = min(each.left / each.rate for each in self._active)
        ready = [each for each in self._active if each.left <= _NOTHING or each.left / each.rate <= soonest]
        self._active = [each for each in self._active if each not in ready]
        for each in ready:
            each.done.succeed()
        self._share()


def bursts(
    env: simpy.Environment,
    bandwidth: SharedBandwidth,
    bytes_per_s: float,
    share: float,
    length_s: float,
    random: np.random.Generator,
) -> Generator[Any, Any, None]:
    """Other jobs: in bursts of ``length_s`` on average they take half of the bandwidth, or ``share`` if that is more;
    so often that ``share`` is what they take on average.
    """
    if share <= 0 or math.isinf(bytes_per_s):
        return
    taken = max(0.5, share)
    quiet_s = length_s * (taken - share) / share
    while True:
        if quiet_s > 0:
            yield env.timeout(float(random.exponential(quiet_s)))
        bandwidth.set_capacity(bytes_per_s * (1 - taken))
        yield env.timeout(float(random.exponential(length_s)))
        bandwidth.set_capacity(bytes_per_s)
