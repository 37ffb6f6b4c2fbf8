"""The channels of sessions that are over, to be used again by the next ones between the same ranks.

The one thing of MPI that outlives a session: communicators are few (MPICH has 2,048 per process) and cannot be freed by
one rank alone, while a session that ends in an exception ends on this rank alone. So none is ever freed. When a session
starts, all its ranks are there again: they agree on which channels each of them is done with, and take these before
they make new ones.

Invariants
----------
* A channel is used again only if on every rank no session has it and nothing is under way on it, all ranks have begun
  equally many collectives on it, and all that was sent on it has been received: an old message cannot be taken for a
  new one. That a session has abandoned it between two exchanges does no harm.
* A channel that this rank has offered is in use until the rank knows what was agreed: others may have taken it.
* What becomes of a channel follows from what was agreed alone, so that all ranks that know the outcome do the same.

No MPI in here: the numbers are combined where there is a communicator.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from deeppart.comm.base import Int64s
from deeppart.errors import CommError

#: Channels between the same ranks that can be told apart; of sessions at one time, about a tenth as many. Those beyond
#: are made and not used again.
PLACES = 64
#: No start takes more out of those that can be used again: a channel per level, one for scrubbing, the main one.
MOST_TAKEN = 6
#: So many channels of a process may be lost, since something is under way on them for good, before starts are refused:
#: MPI libraries end a job that asks for more communicators than they have.
MOST_LOST = 512

_NAME, _LESS_NAME, _STUCK, _LENT, _CALLS, _LESS_CALLS = range(6)


class Pooled(Protocol):
    """A channel in the pool, with its state.

    Attributes:
        lent: true if a session has it.
        idle: true if no operation is under way on this rank.
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
    """The offer of one rank in the agreement at a start."""

    def __init__(self, most: Int64s, total: Int64s, offered: frozenset[int]) -> None:
        self.most, self.total, self.offered = most, total, offered


class Pool(Generic[C]):
    """The channels between certain ranks, of this process; shared by all threads that start sessions."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Place -> (name, channel); a name and a place together are given once. Guarded by the lock, as the next two.
        self._channels: dict[int, tuple[int, C]] = {}
        self._last_name = 0
        self._lost = 0

    def offer(self) -> Offer:
        """The numbers to be combined. What is offered is in use until :meth:`agreed`."""
        most = np.zeros((1 + PLACES, 6), dtype=np.int64)
        total = np.zeros(PLACES, dtype=np.int64)
        offered = set()
        with self._lock:
            most[0, :2] = self._last_name + 1, self._lost
            for place, (name, channel) in self._channels.items():
                stuck = not channel.lent and not channel.idle
                most[1 + place] = name, -name, stuck, channel.lent, channel.calls, -channel.calls
                total[place] = channel.sent - channel.received
                if not stuck and not channel.lent:
                    channel.lent = True
                    offered.add(place)
        return Offer(most.reshape(-1), total, frozenset(offered))

    def agreed(self, offer: Offer) -> Lease[C]:
        """The channels on which the ranks have agreed, once the offer holds the combined numbers."""
        most = offer.most.reshape(1 + PLACES, 6)
        name, lost = int(most[0, 0]), int(most[0, 1])
        usable: list[C] = []
        free: list[int] = []
        with self._lock:
            self._last_name = max(self._last_name, name)
            for place, numbers in enumerate(most[1:]):
                if not numbers[_NAME]:
                    free.append(place)
                elif _is_dead(numbers, int(offer.total[place])):
                    self._drop(place)
                    free.append(place)
                elif place in offer.offered:
                    channel = self._channels[place][1]
                    channel.lent = bool(not numbers[_LENT] and len(usable) < MOST_TAKEN)
                    if channel.lent:
                        usable.append(channel)
        if lost > MOST_LOST:
            for channel in usable:
                channel.lent = False
            raise CommError(
                "too many sessions of this job were broken off in the middle of an exchange between ranks",
                expected=f"at most {MOST_LOST} channels lost: MPI libraries have about two thousand",
                found=f"{lost} channels on which something is under way that will never end",
                todo="start the processes again: MPI has no more communicators; committed checkpoints are not affected",
            )
        return Lease(self, usable, free, name)

    def put(self, place: int, name: int, channel: C) -> None:
        """A new channel, made by all ranks together."""
        with self._lock:
            self._channels[place] = (name, channel)

    def _drop(self, place: int) -> None:
        if self._channels.pop(place, None) is not None:
            self._lost += 1


def _is_dead(numbers: Int64s, unreceived: int) -> bool:
    """True if the channel of a place can never be used again."""
    if numbers[_NAME] != -numbers[_LESS_NAME] or numbers[_STUCK]:
        return True  # some ranks know of none there, or of another, since they gave its start up
    if numbers[_LENT]:
        return False
    return bool(numbers[_CALLS] != -numbers[_LESS_CALLS] or unreceived)


class Lease(Generic[C]):
    """The channels that a session may have: those that all ranks are done with, then new ones.

    Every rank takes and adds in the same order.

    Attributes:
        number: of the session; no two between the same ranks have the same.
    """

    def __init__(self, pool: Pool[C], usable: Sequence[C], free: Sequence[int], name: int) -> None:
        self._pool, self._usable, self._free, self.number = pool, list(usable), list(free), name

    def take(self) -> C | None:
        """The next channel to use again, or None."""
        return self._usable.pop(0) if self._usable else None

    def add(self, channel: C) -> None:
        """A channel that the ranks have made because there was none."""
        channel.lent = True
        if self._free:
            self._pool.put(self._free.pop(0), self.number, channel)

    def end(self) -> None:
        """Nothing more will be taken."""
        for channel in self._usable:
            channel.lent = False
        self._usable.clear()
