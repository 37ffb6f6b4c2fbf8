"""The messages of one session on one rank, of which its channels consist: what all transports have in common.

A transport moves messages, over MPI (:mod:`deeppart.comm.mpi`) or over ZeroMQ (:mod:`deeppart.comm.sockets.transport`).
Short ones are sent at once; a long one is offered, and moved into the receiver's buffer once that is waiting for it.
Here, messages that have arrived are matched with the operations that wait for them, by their keys, in any order. What
arrives for an operation that was given up is dropped.

Progress is only made in :meth:`Transport.progress`, which every operation calls while it waits, in any thread.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod

import numpy as np

from deeppart.comm.base import Int64s, Operation
from deeppart.comm.messages import HEADER_BYTES, Bytes, Key, Kind, Offer, Transfer, packed, unpacked
from deeppart.comm.trees import neighbours
from deeppart.errors import CommError

#: Messages up to this length are sent at once; longer ones are offered.
SHORT_BYTES = 32 << 10
#: With up to this many ranks, presence is sent to all of them, otherwise to neighbours, which pass it on.
_FEW = 64
#: Interval at which presence is passed on.
_SPREAD_S = 0.1


class Transport(ABC):
    """The messages of one rank in one session.

    Attributes:
        rank, size: this rank and the number of ranks; -1 and 0 before the ranks have met.
        pid: the process that made it: a forked child does not use it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock  # guards the attributes below, and what subclasses send by
        self.pid = os.getpid()
        self._incoming: weakref.WeakValueDictionary[tuple[int, Key], Transfer] = weakref.WeakValueDictionary()
        #: Messages that arrived before they were waited for: a short message, or the offer of a long one.
        self._early: dict[tuple[int, Key], Bytes | Offer] = {}
        #: Channels are numbered from 1.
        self._channels, self._released_channels = 0, set[int]()
        self._spread_at = 0.0
        self._closed, self._is_torn = False, False
        self._meet(-1, 0)

    def _meet(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        #: Channel -> number of the operation in which each rank waits, as far as known, or 0; larger ones are newer.
        self._rows: dict[int, Int64s] = {}
        self._news: set[int] = set()  # channels with rows to be passed on
        self._hearers = set(neighbours(rank, size) if size > _FEW else range(size)) - {rank}

    def send(self, to: int, key: Key, data: Bytes | bytes) -> Operation[Bytes]:
        """Send a message. The transfer starts at the call; ``data`` must not change until it ends."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if not array.flags.c_contiguous:
            raise ValueError("a message must be contiguous in memory")
        outgoing = Transfer(to, key, array)
        with self._lock:
            self._refuse_closed()
            if to == self.rank:
                self._on_arrival(to, key, array.copy())
                outgoing.complete()
            elif array.size <= SHORT_BYTES:
                self._put(outgoing, packed(Kind.SHORT, key) + array.tobytes())
            else:
                self._offer(outgoing, array)
        return self._finishing(outgoing)

    def receive(self, source: int, key: Key, buffer: Bytes | None = None) -> Operation[Bytes]:
        """Receive a message, into the buffer if there is one. The transfer starts at the call."""
        incoming = Transfer(source, key, buffer)
        with self._lock:
            self._refuse_closed()
            self._incoming[source, key] = incoming
            if (early := self._early.pop((source, key), None)) is not None:
                self._on_arrival(source, key, early)
        return self._finishing(incoming)

    def _finishing(self, transfer: Transfer) -> Operation[Bytes]:
        seen = 0
        while not transfer.is_complete:
            has_all = self._continue(transfer.key)
            if not transfer.is_complete:
                if has_all:
                    self._check(transfer.other)
                is_moving, seen = transfer.moved > seen, transfer.moved
                yield is_moving
        if transfer.problem is not None:
            raise transfer.problem
        assert transfer.buffer is not None
        return transfer.buffer

    def heartbeat(self, channel: int, operation: int) -> None:
        """Tell the others in which operation of a channel this rank waits, so that an error can name the rest."""
        row = np.zeros(self.size, dtype=np.int64)
        row[self.rank] = operation
        with self._lock:
            if not self._closed:
                self._merge(channel, row)
                self._spread_presence()

    def presence(self, channel: int) -> Int64s:
        """The operation of a channel in which each rank waits, as far as known; 0 for none."""
        self.progress()
        with self._lock:
            return self._rows.get(channel, np.zeros(self.size, dtype=np.int64))

    def add_channel(self) -> int:
        """The number of a new channel."""
        with self._lock:
            self._channels += 1
            return self._channels

    def release_channel(self, channel: int) -> None:
        """Drop a channel on which nothing will be received again; with the last one, the session ends on this rank."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self._released_channels.add(channel)
            self._rows.pop(channel, None)
            for place in [place for place in self._early if place[1][0] == channel]:
                del self._early[place]
            is_last = len(self._released_channels) == self._channels
        if is_last:
            self.close()

    def progress(self) -> bool:
        """Receive and send without waiting; True if there was nothing more to receive."""
        with self._lock:  # nothing else gives the lock back whatever signal interrupts this
            return self._closed or self._progress()

    def close(self) -> None:
        """End the session on this rank; at most once, and not in a forked child."""
        if os.getpid() != self.pid:  # another thread may have held the lock at the fork
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._end()

    def _continue(self, key: Key) -> bool:
        """Make progress, above all with messages of the same channel; see :meth:`progress`."""
        return self.progress()

    def _check(self, other: int) -> None:
        """Raise if it is pointless to wait for a rank."""
        with self._lock:
            self._refuse_closed()

    # All methods below are called with the lock held.

    @abstractmethod
    def _progress(self) -> bool:
        """See :meth:`progress`."""

    @abstractmethod
    def _end(self) -> None:
        """See :meth:`close`."""

    @abstractmethod
    def _put(self, outgoing: Transfer, message: bytes) -> None:
        """Send a short message, with its header."""

    @abstractmethod
    def _offer(self, outgoing: Transfer, array: Bytes) -> None:
        """Offer a long message, and send it."""

    @abstractmethod
    def _accept(self, incoming: Transfer, offer: Offer) -> None:
        """Begin to receive an offered message into the buffer."""

    @abstractmethod
    def _tell(self, to: int, message: bytes) -> None:
        """Send a short message that nobody waits for, and that may be lost if the rank has ended the session."""

    def _spread_presence(self) -> None:
        self._spread_at = time.monotonic()
        for channel in self._news & self._rows.keys():
            for rank in self._hearers:
                self._tell(rank, packed(Kind.WAITS, (channel, 0, 0)) + self._rows[channel].tobytes())
        self._news.clear()

    def _merge(self, channel: int, row: Int64s) -> None:
        """Merge what this or another rank knows of a channel. It is passed on, as each rank only tells a few."""
        old = self._rows.get(channel, np.zeros(self.size, dtype=np.int64))
        if row.size == old.size and (row > old).any():
            self._rows[channel] = np.maximum(old, row)
            self._news.add(channel)

    def _pass_on_presence(self, now: float) -> None:
        """Pass on what others have told, now and then."""
        if now - self._spread_at > _SPREAD_S:
            self._spread_presence()

    def tear(self) -> None:
        """An interrupt has lost a message that had arrived: what it was for would wait until its timeout."""
        self._is_torn = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CommError("the session has ended on this rank", where=f"rank {self.rank}")
        if self._is_torn:
            raise CommError("an interrupt has lost a message from another rank", where=f"rank {self.rank}")

    def _on_message(self, rank: int, message: bytes | memoryview) -> None:
        """Handle a short message, the offer of a long one, or presence."""
        kind, key, first, second = unpacked(message)
        data = np.frombuffer(message, dtype=np.uint8, offset=HEADER_BYTES)
        if kind != Kind.WAITS:
            self._on_arrival(rank, key, data if kind == Kind.SHORT else Offer(first, second, data.tobytes()))
        elif key[0] not in self._released_channels:
            self._merge(key[0], data.view(np.int64))

    def _on_arrival(self, rank: int, key: Key, what: Bytes | Offer) -> None:
        """Handle a short message, or the offer of a long one."""
        incoming = self._incoming.get((rank, key))
        if incoming is None:
            if key[0] not in self._released_channels:
                self._early[rank, key] = what
            return
        nbytes = what.nbytes
        if incoming.buffer is None:
            incoming.buffer = np.empty(nbytes, dtype=np.uint8)
        if incoming.buffer.size != nbytes:
            incoming.problem = CommError(
                "another rank has sent a message of another length",
                expected=f"{incoming.buffer.size} bytes",
                found=f"{nbytes} bytes",
                where=f"from rank {rank} to rank {self.rank}",
            )
            incoming.complete()
        elif isinstance(what, np.ndarray):
            incoming.buffer[:] = what
            incoming.complete()
        else:
            self._accept(incoming, what)
