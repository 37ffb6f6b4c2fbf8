"""Channels of sessions that have ended, to be reused by later sessions between the same ranks.

These MPI objects outlive a session: communicators are few (MPICH has 2,048 per process) and cannot be freed by one rank
alone, while a session that ends by an exception ends on one rank alone. So none is ever freed. When a session starts,
its ranks agree on the channels that none of them uses any more, and take these before they create new ones.

Invariants
----------
* A channel is reused only if on every rank no session uses it and no operation on it is pending, all ranks have begun
  equally many collectives on it, and all messages sent on it have been received: an old message cannot be taken for a
  new one. A channel that a session abandoned between two exchanges can be reused.
* A channel that this rank has offered is in use until the rank knows the outcome: others may have taken it.
* What happens to a channel depends only on the outcome, so that all ranks that know it do the same.

No MPI in here: the caller combines the numbers with its communicator.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from deeppart.comm.base import Int64s
from deeppart.errors import CommError

#: Slots for channels between the same ranks, for about a tenth as many concurrent sessions. Further ones are created
#: and not reused.
SLOTS = 64
#: Reusable channels that a start takes, at most: a channel per level, one for scrubbing, the main one.
MOST_TAKEN = 6
#: Channels of a process that may be lost, because an operation on them never ends, before starts are refused: MPI
#: libraries end a job that asks for more communicators than they have.
MOST_LOST = 512

_NAME, _LESS_NAME, _STUCK, _LENT, _CALLS, _LESS_CALLS = range(6)


class Pooled(Protocol):
    """A channel in the pool, with its state.

    Attributes:
        lent: true if a session uses it.
        idle: true if no operation is pending on this rank.
        calls: collectives begun so far.
        sent, received: messages between two ranks.
    """

    lent: bool
    calls: int
    sent: int
    received: int

    @property
    def idle(self) -> bool: ...


C = TypeVar("C", bound=Pooled)


class Offer:
    """One rank's offer in the agreement at a start."""

    def __init__(self, most: Int64s, total: Int64s, offered: frozenset[int]) -> None:
        self.most, self.total, self.offered = most, total, offered


class Pool(Generic[C]):
    """This process's channels between certain ranks; shared by all threads that start sessions."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Slot -> (name, channel); a pair of name and slot is used once. Guarded by the lock, like the next two.
        self._channels: dict[int, tuple[int, C]] = {}
        self._last_name = 0
        self._lost = 0

    def offer(self) -> Offer:
        """The numbers to be combined. Offered channels are in use until :meth:`agreed`."""
        most = np.zeros((1 + SLOTS, 6), dtype=np.int64)
        total = np.zeros(SLOTS, dtype=np.int64)
        offered = set()
        with self._lock:
            most[0, :2] = self._last_name + 1, self._lost
            for slot, (name, channel) in self._channels.items():
                stuck = not channel.lent and not channel.idle
                most[1 + slot] = name, -name, stuck, channel.lent, channel.calls, -channel.calls
                total[slot] = channel.sent - channel.received
                if not stuck and not channel.lent:
                    channel.lent = True
                    offered.add(slot)
        return Offer(most.reshape(-1), total, frozenset(offered))

    def agreed(self, offer: Offer) -> Lease[C]:
        """The channels on which the ranks have agreed, given the combined numbers of the offer."""
        most = offer.most.reshape(1 + SLOTS, 6)
        name, lost = int(most[0, 0]), int(most[0, 1])
        usable: list[C] = []
        free: list[int] = []
        with self._lock:
            self._last_name = max(self._last_name, name)
            for slot, numbers in enumerate(most[1:]):
                if not numbers[_NAME]:
                    free.append(slot)
                elif _is_dead(numbers, int(offer.total[slot])):
                    self._drop(slot)
                    free.append(slot)
                elif slot in offer.offered:
                    channel = self._channels[slot][1]
                    channel.lent = bool(not numbers[_LENT] and len(usable) < MOST_TAKEN)
                    if channel.lent:
                        usable.append(channel)
        if lost > MOST_LOST:
            for channel in usable:
                channel.lent = False
            raise CommError(
                "too many sessions of this job were interrupted in the middle of an exchange between ranks",
                expected=f"at most {MOST_LOST} channels lost: MPI libraries have about two thousand",
                found=f"{lost} channels with an operation that will never end",
                todo="start the processes again: MPI has no more communicators; committed checkpoints are not affected",
            )
        return Lease(self, usable, free, name)

    def put(self, slot: int, name: int, channel: C) -> None:
        """Add a new channel, created by all ranks together."""
        with self._lock:
            self._channels[slot] = (name, channel)

    def _drop(self, slot: int) -> None:
        if self._channels.pop(slot, None) is not None:
            self._lost += 1


def _is_dead(numbers: Int64s, unreceived: int) -> bool:
    """True if the channel in a slot can never be used again."""
    if numbers[_NAME] != -numbers[_LESS_NAME] or numbers[_STUCK]:
        return True  # some ranks have none there, or another one, because they gave up its start
    if numbers[_LENT]:
        return False
    return bool(numbers[_CALLS] != -numbers[_LESS_CALLS] or unreceived)


class Lease(Generic[C]):
    """The channels for a session: reusable ones first, then new ones.

    Every rank takes and adds channels in the same order.

    Attributes:
        number: number of the session, unique between the same ranks.
    """

    def __init__(self, pool: Pool[C], usable: Sequence[C], free: Sequence[int], name: int) -> None:
        self._pool, self._usable, self._free, self.number = pool, list(usable), list(free), name

    def take(self) -> C | None:
        """The next reusable channel, or None."""
        return self._usable.pop(0) if self._usable else None

    def add(self, channel: C) -> None:
        """Add a channel that the ranks have created because none was reusable."""
        channel.lent = True
        if self._free:
            self._pool.put(self._free.pop(0), self.number, channel)

    def end(self) -> None:
        """End the lease: nothing more will be taken."""
        for channel in self._usable:
            channel.lent = False
        self._usable.clear()
