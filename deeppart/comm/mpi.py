"""Messages over mpi4py: non-blocking, on one duplicate of the caller's communicator, polled.

Blocking MPI calls can neither time out nor leave the processor to the training thread, so none is used. All sessions
between the ranks of a communicator use the same duplicate: each message has the number of its session, and one of a
session that has ended on this rank is dropped. So an interrupted session takes nothing from later ones but the memory
of long messages that it was sending, which MPI may still read: that is kept until the process ends.

If MPI does not allow all ranks' background threads to use it (below ``MPI_THREAD_MULTIPLE``), it is only used to
exchange the addresses of sockets, which the session then uses.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from deeppart.comm.base import Operation, immediately
from deeppart.comm.channel import Comm
from deeppart.comm.messages import Bytes, Incoming, Key, Kind, Offer, packed
from deeppart.comm.single import NotConnected
from deeppart.comm.transport import Transport
from deeppart.comm.waiting import finish
from deeppart.errors import CommError

#: Tag of all messages but the contents of long ones, each of which has a tag of its own.
_MESSAGE_TAG = 0
#: Every MPI library has tags up to this one.
_LEAST_TAG_UB = 32767
#: Long messages are sent in pieces of this size: some MPI libraries cannot send 2 GiB.
PIECE_BYTES = 256 << 20
_SESSION_BYTES = 8
_CONNECTING = "connecting the ranks"


class _Communicator:
    """A duplicate of a caller's communicator, and the sessions that use it.

    Attributes:
        rank, size: this rank and the number of ranks.
        lock: guards the attributes below, and those of the sessions' transports.
        is_kept: true if the caller's communicator still exists: there may be further sessions.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.lock = threading.Lock()
        self.is_kept = True
        with _typed_errors():
            self._mpi, self._duplicating = comm.Idup()
        self._tags, self._tag = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or _LEAST_TAG_UB), 0
        #: Requests of messages that MPI may still read, by tag; a list is emptied once MPI has sent its message.
        self._sending: dict[int, list[MPI.Request]] = {}
        #: Requests of messages that MPI may still write, and what to do with each message.
        self._receiving: list[tuple[list[MPI.Request], Callable[[], None]]] = []
        #: The n-th session of one rank is that of all.
        self._sessions = 0
        self._open: weakref.WeakValueDictionary[int, MpiTransport] = weakref.WeakValueDictionary()
        #: Messages of sessions that have not begun on this rank: by number, with the ranks that sent them.
        self._early: dict[int, list[tuple[int, bytearray]]] = {}

    def duplicated(self) -> Operation[None]:
        """Wait until it can be used. If the wait is given up, the next one continues."""
        while True:
            with self.lock, _typed_errors():
                if self._duplicating.Test():
                    return
            yield False

    def progress(self, transport: MpiTransport) -> bool:
        """Receive and send without waiting, on behalf of one session; True unless another thread is doing so."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            with _typed_errors():
                self._take()
            transport.pass_on_presence(time.monotonic())
            return True
        finally:
            self.lock.release()

    # All methods below are called with the lock held.

    def begin(self, transport: MpiTransport) -> int:
        """Begin a session; returns its number."""
        self._sessions += 1
        self._open[self._sessions] = transport
        for rank, message in self._early.pop(self._sessions, ()):
            transport.on_message(rank, message)
        return self._sessions

    def end(self, session: int) -> None:
        """End a session on this rank."""
        self._open.pop(session, None)
        self.free_unused()

    def free_unused(self) -> None:
        """Free the duplicate if nothing will use it any more, and MPI has no memory of it."""
        if self.is_kept or self._open:
            return
        is_ready = self._duplicating.Test()
        if is_ready:
            self._take()
        if is_ready and not self._sending and not self._receiving:
            self._mpi.Free()
        else:
            _in_use_forever.append(self)

    def send(self, to: int, message: bytes) -> list[MPI.Request]:
        """Send a short message; the list is emptied once MPI does not need it any more."""
        tag = self._next_tag()
        with _typed_errors():
            requests = self._sending[tag] = [self._mpi.Isend(message, dest=to, tag=_MESSAGE_TAG)]
            self._drop_if_sent(tag)
        return requests

    def send_long(self, to: int, contents: Bytes) -> tuple[int, list[MPI.Request]]:
        """Send contents of a message, with a tag that no other has; the list is emptied once they have been received.

        Synchronous: contents that are never received stay under way, and keep their tag.
        """
        tag = self._next_tag()
        requests = self._sending[tag] = []
        with _typed_errors():
            for piece in _pieces(contents):
                requests.append(self._mpi.Issend(piece, dest=to, tag=tag))
        return tag, requests

    def receive_long(self, source: int, tag: int, buffer: Bytes, then: Callable[[], None]) -> None:
        """Receive contents of a message, and call ``then``."""
        self._receiving.append(([self._mpi.Irecv(each, source=source, tag=tag) for each in _pieces(buffer)], then))

    def _next_tag(self) -> int:
        if len(self._sending) >= self._tags:
            raise CommError(
                "too many exchanges of this job were interrupted",
                found=f"{len(self._sending)} messages that were never received",
                where=f"rank {self.rank}",
                todo="start the processes again; committed checkpoints are not affected",
            )
        self._tag = self._tag % self._tags + 1
        while self._tag in self._sending:
            self._tag = self._tag % self._tags + 1
        return self._tag

    def _take(self) -> None:
        """Handle what MPI has completed."""
        status = MPI.Status()
        while (found := self._mpi.Improbe(source=MPI.ANY_SOURCE, tag=_MESSAGE_TAG, status=status)) is not None:
            message = bytearray(status.Get_count(MPI.BYTE))
            then = partial(self._on_message, status.Get_source(), message)
            self._receiving.append(([found.Irecv(message)], then))
        for each in list(self._receiving):
            if MPI.Request.Testall(each[0]):
                self._receiving.remove(each)
                each[1]()
        for tag in list(self._sending):
            self._drop_if_sent(tag)

    def _drop_if_sent(self, tag: int) -> None:
        if MPI.Request.Testall(self._sending[tag]):
            self._sending.pop(tag).clear()

    def _on_message(self, rank: int, message: bytearray) -> None:
        session = int.from_bytes(message[:_SESSION_BYTES], "little")
        if (transport := self._open.get(session)) is not None:
            transport.on_message(rank, message)
        elif session > self._sessions:
            self._early.setdefault(session, []).append((rank, message))


#: Communicators that MPI may still use although nothing else does.
_in_use_forever: list[_Communicator] = []


class MpiTransport(Transport):
    """The messages of one session over MPI."""

    def __init__(self, communicator: _Communicator) -> None:
        super().__init__(communicator.lock)
        self._communicator = communicator
        self._meet(communicator.rank, communicator.size)
        with self._lock:
            self._session = communicator.begin(self)

    def progress(self) -> bool:
        return self._closed or self._communicator.progress(self)

    def close(self) -> None:
        if os.getpid() != self.pid:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._communicator.end(self._session)

    def _sending(self, to: int, requests: list[MPI.Request]) -> Operation[None]:
        while requests:
            self.progress()
            if requests:
                self._check(to)
                yield False

    # All methods below are called with the lock held.

    def on_message(self, rank: int, message: bytearray) -> None:
        """Handle a message of this session."""
        self._on_message(rank, memoryview(message)[_SESSION_BYTES:])

    def _put(self, to: int, message: bytes) -> Operation[None]:
        session = self._session.to_bytes(_SESSION_BYTES, "little")
        requests = self._communicator.send(to, session + message)
        return self._sending(to, requests) if requests else immediately(None)

    def _offer(self, to: int, key: Key, array: Bytes) -> Operation[None]:
        tag, requests = self._communicator.send_long(to, array)
        self._put(to, packed(Kind.OFFER, key, array.size, tag))
        return self._sending(to, requests)

    def _accept(self, incoming: Incoming, offer: Offer) -> None:
        assert incoming.buffer is not None

        def complete() -> None:
            incoming.is_complete = True

        # It is held until MPI has written to its buffer, also if the operation is given up.
        self._communicator.receive_long(incoming.source, offer.place, incoming.buffer, complete)


def connect(comm: MPI.Comm, timeout: float) -> Comm:
    """A new session between the ranks of the caller's communicator (collective).

    Over sockets, a host that is silent for the timeout is considered gone.
    """
    communicator: Any = comm.Get_attr(_key())
    if communicator is None:
        communicator = _Communicator(comm)
        comm.Set_attr(_key(), communicator)
    waiting = NotConnected(communicator.rank, communicator.size)
    finish(waiting, communicator.duplicated(), _CONNECTING, timeout)
    channel = Comm(MpiTransport(communicator))
    try:
        without_threads = np.array([MPI.Query_thread() != MPI.THREAD_MULTIPLE], dtype=np.int64)
        if not finish(channel, channel.maximum(without_threads), _CONNECTING, timeout)[0]:
            return channel
        found = _over_sockets(channel, timeout)
    except BaseException:
        channel.release()
        raise
    channel.release()
    return found


def _over_sockets(channel: Comm, timeout: float) -> Comm:
    from deeppart.comm.sockets.address import Address, interface_of_host
    from deeppart.comm.sockets.rank_sockets import RankSockets
    from deeppart.comm.sockets.transport import SocketTransport, connect_all

    transport = SocketTransport(RankSockets(interface_of_host(), timeout))
    try:
        addresses = finish(channel, channel.allgather(transport.address.encode()), _CONNECTING, timeout)
        connecting = connect_all(transport, channel.rank, [Address.decode(each) for each in addresses])
        return finish(channel, connecting, _CONNECTING, timeout)
    except BaseException:
        transport.close()
        raise


def _free_with(comm: MPI.Comm, key: int, communicator: _Communicator) -> None:
    """The caller frees its communicator. That of the world is never freed, only MPI as a whole finalized."""
    if comm != MPI.COMM_WORLD:
        with communicator.lock:
            communicator.is_kept = False
            communicator.free_unused()


@functools.cache
def _key() -> int:
    """The key under which a :class:`_Communicator` is attached to the caller's, whose lifetime it shares."""
    return MPI.Comm.Create_keyval(delete_fn=_free_with)


def before_finalize(call: Callable[[], None]) -> None:
    """Have ``call`` called at the beginning of ``MPI_Finalize``, while MPI can still be used.

    Uses an attribute of ``COMM_SELF``: MPI 4.1, section 11.2.4, "Allowing User Functions at MPI Finalization". If a
    script calls ``MPI.Finalize()``, ``call`` runs before it: MPICH 5.0.2 may abort at the end of ``MPI_Finalize``
    if other threads are in MPI when it begins ("pthread_mutex_destroy: Device or resource busy").
    """
    if MPI.Is_initialized() and not MPI.Is_finalized():
        _hook(call)


@functools.cache
def _hook(call: Callable[[], None]) -> None:
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: call()), None)
    MPI.Finalize = _calling_before(call, MPI.Finalize)


def _calling_before(call: Callable[[], None], finalize: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(finalize)
    def finalize_after() -> None:
        try:
            call()
        finally:
            finalize()

    return finalize_after


def _pieces(buffer: Bytes) -> list[Bytes]:
    return [buffer[at : at + PIECE_BYTES] for at in range(0, buffer.size, PIECE_BYTES)]


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except MPI.Exception as error:
        raise CommError(
            "MPI cannot continue an exchange",
            found=str(error),
            todo="look for a rank or node that is gone; start the job again: complete checkpoints are not affected",
        ) from error
