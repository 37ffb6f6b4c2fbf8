"""Communicator over mpi4py: non-blocking operations on duplicated communicators, polled.

Blocking MPI calls can neither time out nor leave the processor to the training thread, so none is used after start-up.
Large transfers are divided by the callers; one message stays far below 2 GiB, which some MPI libraries cannot send.

Communicators are duplicated from the caller's, and never freed: :mod:`deeppart.comm.pool` keeps them for the next
session. If MPI does not allow all ranks' background threads to use it (below ``MPI_THREAD_MULTIPLE``), it is only used
to exchange the addresses of sockets, which the session then uses.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deeppart.comm.base import ABANDONED, GAVE_UP, Comm, Int64s, Operation, abandoned_value
from deeppart.comm.pool import Lease, Pool
from deeppart.errors import CommError

#: Point-to-point tag of heartbeats; callers' tags are moved above it.
_HEARTBEAT_TAG = 0
_FIRST_USER_TAG = 1
#: Longest single message.
MESSAGE_BYTES = 256 << 20


class _Communicator:
    """A duplicated MPI communicator, which successive sessions use for a channel.

    Attributes:
        mpi: the communicator.
        lent, calls, sent, received: see :class:`deeppart.comm.pool.Pooled`.
        heartbeats: pending heartbeats, with their memory.
        lock: guards the number of pending operations, and the heartbeats: several threads may use them.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.mpi = comm
        self.lent = False
        self.calls, self.sent, self.received = 0, 0, 0
        self.lock = threading.Lock()
        self.heartbeats: list[tuple[MPI.Request, npt.NDArray[np.int64]]] = []
        self._waiting = 0  # pending operations

    @property
    def idle(self) -> bool:
        """True if no operation is pending on this rank."""
        return not self._waiting

    def counted(self, requests: list[MPI.Request]) -> Operation[None]:
        """Wait for started requests. One whose operation is abandoned stays pending forever."""
        with self.lock:
            self._waiting += 1
        waiting = _all_completed(requests)

        def wait() -> Operation[None]:
            yield from waiting
            with self.lock:
                self._waiting -= 1

        return wait()


class MpiComm:
    """One channel of a session. After the session has ended or broken, it no longer uses the communicator."""

    def __init__(self, communicator: _Communicator, lease: Lease[_Communicator], *, is_main: bool = False) -> None:
        self._communicator, self._lease, self._is_main = communicator, lease, is_main
        self._comm = communicator.mpi
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.broken: CommError | None = None
        self._operations = 0
        self._heard: dict[int, int] = {}

    def channel(self) -> Operation[Comm]:
        self._operations += 1
        made = yield from _next_communicator(self._comm, self._lease, self._collective)
        return MpiComm(made, self._lease)

    def release(self) -> None:
        self.broken = self.broken or CommError("the session has ended on this rank", where=f"rank {self.rank}")
        self._communicator.lent = False
        if self._is_main:
            self._lease.end()

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        self._operations += 1
        result = np.empty_like(values)
        yield from self._collective(self._comm.Iallreduce(values, result, op=MPI.MAX))
        return result

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        self._operations += 1
        lengths = np.zeros(self.size, dtype=np.int64)
        yield from self._collective(self._comm.Iallgather(np.array([len(data)], dtype=np.int64), lengths))
        received = np.empty(int(lengths.sum()), dtype=np.uint8)
        yield from self._collective(
            self._comm.Iallgatherv(np.frombuffer(data, dtype=np.uint8), [received, lengths.tolist(), MPI.BYTE])
        )
        return _cut(received, lengths)

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        self._operations += 1
        root = self.rank == 0
        lengths = np.zeros(self.size, dtype=np.int64) if root else None
        yield from self._collective(self._comm.Igather(np.array([len(data)], dtype=np.int64), lengths, root=0))
        received = None if lengths is None else np.empty(int(lengths.sum()), dtype=np.uint8)
        target: Any = None if lengths is None else [received, lengths.tolist(), MPI.BYTE]
        yield from self._collective(self._comm.Igatherv(np.frombuffer(data, dtype=np.uint8), target, root=0))
        return None if received is None or lengths is None else _cut(received, lengths)

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        self._operations += 1
        length = np.array([len(data) if data is not None else 0], dtype=np.int64)
        yield from self._collective(self._comm.Ibcast(length, root=root))
        if self.rank == root and data is not None:
            buffer = np.frombuffer(data, dtype=np.uint8)
        else:
            buffer = np.empty(int(length[0]), dtype=np.uint8)
        yield from self._collective(self._comm.Ibcast(buffer, root=root))
        return data if self.rank == root and data is not None else buffer.tobytes()

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        self._refuse_broken()
        tag += _FIRST_USER_TAG
        requests = [self._comm.Isend(piece, dest=to, tag=tag) for piece in _pieces(buffer)]
        self._communicator.sent += len(requests)
        return self._communicator.counted(requests)

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        self._refuse_broken()
        tag += _FIRST_USER_TAG
        requests = [self._comm.Irecv(piece, source=source, tag=tag) for piece in _pieces(buffer)]
        self._communicator.received += len(requests)
        return self._communicator.counted(requests)

    def heartbeat(self) -> None:
        on = self._communicator
        with on.lock:
            message = np.array([self._lease.number, self._operations], dtype=np.int64)
            on.heartbeats = [(request, kept) for request, kept in on.heartbeats if not request.Test()]
            for rank in range(self.size):
                if rank != self.rank:
                    on.heartbeats.append((self._comm.Isend(message, dest=rank, tag=_HEARTBEAT_TAG), message))

    def present(self) -> set[int]:
        self._listen()
        here = {rank for rank, operation in self._heard.items() if self._operations <= operation < ABANDONED}
        return here | {self.rank}

    def abandon(self, error: CommError) -> None:
        if self.broken is None:
            self.broken, self._operations = error, abandoned_value(error)
            self.heartbeat()

    def abandoned_by(self) -> set[int]:
        self._listen()
        return {rank for rank, operation in self._heard.items() if operation == ABANDONED}

    def given_up_by(self) -> set[int]:
        self._listen()
        return {rank for rank, operation in self._heard.items() if operation == GAVE_UP}

    def _listen(self) -> None:
        status = MPI.Status()
        while (found := self._comm.Improbe(source=MPI.ANY_SOURCE, tag=_HEARTBEAT_TAG, status=status)) is not None:
            message = np.zeros(2, dtype=np.int64)
            found.Recv(message)
            session, operation = message.tolist()
            if (
                session == self._lease.number
            ):  # otherwise it is from an operation of an earlier session that was abandoned
                self._heard[status.Get_source()] = operation

    def _collective(self, *requests: MPI.Request) -> Operation[None]:
        self._communicator.calls += len(requests)
        return self._communicator.counted(list(requests))

    def _refuse_broken(self) -> None:
        """Refuse to begin: an operation that begins at the call may come from a thread of a session that has ended."""
        if self.broken is not None:
            raise self.broken


class _Process:
    """Process-wide state that outlives sessions over MPI; the only instance is :data:`_process`.

    Attributes:
        under_way: requests that MPI has not reported as completed. Requests of abandoned operations stay here forever,
            with the memory that MPI may still read or write. Only atomic dict operations.
    """

    def __init__(self) -> None:
        self.under_way: dict[int, list[MPI.Request]] = {}
        self._lock = threading.Lock()
        #: World ranks -> the channels between them. Guarded by the lock.
        self._pools: dict[tuple[int, ...], Pool[_Communicator]] = {}

    def pool_between(self, comm: MPI.Comm) -> Pool[_Communicator]:
        """The pool of the ranks of a communicator; all communicators between the same ranks in the same order share
        it.
        """
        group, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
        ranks = tuple(group.Translate_ranks(list(range(comm.Get_size())), everyone))
        group.Free()
        everyone.Free()
        if MPI.UNDEFINED in ranks:  # processes that were started separately
            return Pool()
        with self._lock:
            return self._pools.setdefault(ranks, Pool())


_process = _Process()


class _Starts:
    """The starts of sessions over one of the caller's communicators, in the order of the calls.

    Each is a sequence of collectives on that communicator. A start that this rank has given up, because others were
    late, must end before the next may begin: otherwise the ranks' collectives would no longer match.

    Attributes:
        pool: the pool of channels between these ranks.
        begun: starts that have not ended.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.pool = _process.pool_between(comm)
        self.begun: list[Operation[Comm]] = []


def connected(comm: MPI.Comm, silence_s: float) -> Operation[Comm]:
    """A new channel between the ranks of the caller's communicator (collective).

    Over sockets, a host that is silent for ``silence_s`` is considered gone.
    """
    starts: Any = comm.Get_attr(_starts_key())
    if starts is None:
        starts = _Starts(comm)
        comm.Set_attr(_starts_key(), starts)
    mine = _start(comm, starts.pool, silence_s)
    starts.begun.append(mine)
    while True:
        first = starts.begun[0]
        try:
            moved = next(first)  # not "yield from", which would end the start when this operation is given up
        except StopIteration as stop:
            channel: Comm = stop.value
            del starts.begun[0]
            if first is mine:
                return channel
            channel.abandon(CommError("the session that this channel is of was given up at its start"))
            channel.release()
        except BaseException as error:
            del starts.begun[0]
            if first is mine or not isinstance(error, CommError):
                raise
        else:
            yield moved  # if this operation is given up here, the start continues


def _start(comm: MPI.Comm, pool: Pool[_Communicator], silence_s: float) -> Operation[Comm]:
    offer = pool.offer()
    without_threads = np.array([MPI.Query_thread() != MPI.THREAD_MULTIPLE], dtype=np.int64)
    try:
        requests = [comm.Iallreduce(MPI.IN_PLACE, offer.most, op=MPI.MAX)]
        requests.append(comm.Iallreduce(MPI.IN_PLACE, offer.total, op=MPI.SUM))
        requests.append(comm.Iallreduce(MPI.IN_PLACE, without_threads, op=MPI.MAX))
    except MPI.Exception as error:
        raise _mpi_error(error) from error
    yield from _all_completed(requests)
    lease = pool.agreed(offer)
    if without_threads[0]:
        lease.end()
        return (yield from _over_sockets(comm, silence_s))
    main = yield from _next_communicator(comm, lease, lambda request: _all_completed([request]))
    return MpiComm(main, lease, is_main=True)


def _over_sockets(comm: MPI.Comm, silence_s: float) -> Operation[Comm]:
    from deeppart.comm.sockets.address import Address, interface_of_host
    from deeppart.comm.sockets.channel import connect_all
    from deeppart.comm.sockets.rank_sockets import RankSockets
    from deeppart.comm.sockets.transport import Transport

    transport = Transport(RankSockets(interface_of_host(), silence_s))
    try:
        mine = transport.address.encode()
        lengths = np.zeros(comm.Get_size(), dtype=np.int64)
        yield from _all_completed([comm.Iallgather(np.array([len(mine)], dtype=np.int64), lengths)])
        received = np.empty(int(lengths.sum()), dtype=np.uint8)
        target: Any = [received, lengths.tolist(), MPI.BYTE]
        yield from _all_completed([comm.Iallgatherv(np.frombuffer(mine, dtype=np.uint8), target)])
        addresses = [Address.decode(each) for each in _cut(received, lengths)]
        return (yield from connect_all(transport, comm.Get_rank(), addresses))
    except BaseException:
        transport.close()
        raise


def _next_communicator(
    comm: MPI.Comm, lease: Lease[_Communicator], completed: Callable[[MPI.Request], Operation[None]]
) -> Operation[_Communicator]:
    """The next communicator of a lease, or a new one."""
    kept = lease.take()
    if kept is not None:
        return kept
    try:
        duplicate, request = comm.Idup()
    except MPI.Exception as error:
        raise _mpi_error(error) from error
    yield from completed(request)
    made = _Communicator(duplicate)
    lease.add(made)
    return made


@functools.cache
def _starts_key() -> int:
    """The key under which :class:`_Starts` is attached to the caller's communicator, whose lifetime it shares."""
    return MPI.Comm.Create_keyval()


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


def _all_completed(requests: list[MPI.Request]) -> Operation[None]:
    _process.under_way[id(requests)] = requests
    return _wait_for(requests)


def _wait_for(requests: list[MPI.Request]) -> Operation[None]:
    try:
        while not MPI.Request.Testall(requests):
            yield False
    except MPI.Exception as error:
        raise _mpi_error(error) from error
    del _process.under_way[id(requests)]


def _mpi_error(error: MPI.Exception) -> CommError:
    return CommError(
        "MPI cannot continue an exchange",
        found=str(error),
        todo="look for a rank or node that is gone; start the job again: complete checkpoints are not affected",
    )


def _pieces(buffer: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    return [buffer[at : at + MESSAGE_BYTES] for at in range(0, buffer.size, MESSAGE_BYTES)]


def _cut(received: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    ends = np.cumsum(lengths)
    return [received[end - length : end].tobytes() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
