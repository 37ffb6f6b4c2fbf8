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
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from deeppart.comm.base import Operation
from deeppart.comm.channel import Comm
from deeppart.comm.messages import Bytes, Kind, Offer, Transfer, packed
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
        #: Requests of messages whose memory MPI may still use, by a unique tag, and what to do when it does no more.
        self._under_way: dict[int, tuple[list[MPI.Request], Callable[[], None]]] = {}
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
            self.take()
        if is_ready and not self._under_way:
            self._mpi.Free()
        else:
            _in_use_forever.append(self)

    def send(self, to: int, message: bytes, then: Callable[[], None]) -> None:
        """Send a short message, and call ``then``."""
        with _typed_errors():
            self._under_way[self._next_tag()] = [self._mpi.Isend(message, dest=to, tag=_MESSAGE_TAG)], then

    def send_long(self, to: int, contents: Bytes, then: Callable[[], None]) -> int:
        """Send contents of a message, with the returned tag, which no other has, and call ``then``.

        Synchronous: contents that are never received stay under way, and keep their tag.
        """
        tag = self._next_tag()
        requests, _ = self._under_way[tag] = list[MPI.Request](), then
        with _typed_errors():
            for piece in _pieces(contents):
                requests.append(self._mpi.Issend(piece, dest=to, tag=tag))
        return tag

    def receive_long(self, source: int, tag: int, buffer: Bytes, then: Callable[[], None]) -> None:
        """Receive contents of a message, and call ``then``."""
        requests = [self._mpi.Irecv(each, source=source, tag=tag) for each in _pieces(buffer)]
        self._under_way[self._next_tag()] = requests, then

    def _next_tag(self) -> int:
        if len(self._under_way) >= self._tags:
            raise CommError(
                "too many exchanges of this job were interrupted",
                found=f"{len(self._under_way)} messages that were never received",
                where=f"rank {self.rank}",
                todo="start the processes again; committed checkpoints are not affected",
            )
        self._tag = self._tag % self._tags + 1
        while self._tag in self._under_way:
            self._tag = self._tag % self._tags + 1
        return self._tag

    def take(self) -> None:
        """Handle what MPI has completed."""
        while self._mpi.Iprobe(source=MPI.ANY_SOURCE, tag=_MESSAGE_TAG):
            self._wholly(self._receive_short)
        for tag, (requests, _) in list(self._under_way.items()):
            if MPI.Request.Testall(requests):
                self._wholly(partial(self._complete, tag))

    def _wholly(self, step: Callable[[], None]) -> None:
        """Do what loses a message if a signal handler interrupts it, perhaps one of another thread's session."""
        try:
            step()
        except BaseException:
            for transport in self._open.values():
                transport.tear()
            raise

    def _receive_short(self) -> None:
        status = MPI.Status()
        found = self._mpi.Mprobe(source=MPI.ANY_SOURCE, tag=_MESSAGE_TAG, status=status)  # it has arrived
        message = bytearray(status.Get_count(MPI.BYTE))
        then = partial(self._on_message, status.Get_source(), message)
        self._under_way[self._next_tag()] = [found.Irecv(message)], then

    def _complete(self, tag: int) -> None:
        _, then = self._under_way.pop(tag)
        then()

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

    # All methods below are called with the lock held.

    def _progress(self) -> bool:
        with _typed_errors():
            self._communicator.take()
        self._pass_on_presence(time.monotonic())
        return True

    def _end(self) -> None:
        self._communicator.end(self._session)

    def on_message(self, rank: int, message: bytearray) -> None:
        """Handle a message of this session."""
        self._on_message(rank, memoryview(message)[_SESSION_BYTES:])

    def _put(self, outgoing: Transfer, message: bytes) -> None:
        self._send(outgoing.other, message, outgoing.complete)

    def _tell(self, to: int, message: bytes) -> None:
        self._send(to, message, lambda: None)

    def _offer(self, outgoing: Transfer, array: Bytes) -> None:
        tag = self._communicator.send_long(outgoing.other, array, outgoing.complete)
        self._tell(outgoing.other, packed(Kind.OFFER, outgoing.key, array.size, tag))

    def _send(self, to: int, message: bytes, then: Callable[[], None]) -> None:
        self._communicator.send(to, self._session.to_bytes(_SESSION_BYTES, "little") + message, then)

    def _accept(self, incoming: Transfer, offer: Offer) -> None:
        assert incoming.buffer is not None
        # It is held until MPI has written to its buffer, also if the operation is given up.
        self._communicator.receive_long(incoming.other, offer.place, incoming.buffer, incoming.complete)


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
