"""Communicator over mpi4py: non-blocking operations on duplicated communicators, polled.

Blocking MPI calls can neither time out nor leave the processor to the training thread, so none is used after start-up.
Large transfers are cut by the callers; one message stays far below 2 GiB, which some MPI libraries cannot pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deeppart.comm.base import Comm, Int64s, Operation
from deeppart.errors import CommError

#: Point-to-point tag of the roll call; callers' tags are moved above it.
_ROLL_CALL_TAG = 0
_BROADCAST_TAG = 1
_FIRST_USER_TAG = 2
#: Longest single message.
MESSAGE_BYTES = 256 << 20
#: Up to so many ranks, a broadcast is a message to each of them: one copy, where the collective goes through shared
#: buffers: 3 to 10 times faster with MPICH, as fast with Open MPI; measured on one machine (docs/benchmarks.md). With
#: readers taking turns, as in a restore, it sends no byte more than the collective.
_DIRECT_RANKS = 16


class MpiComm:
    """One channel over a duplicated MPI communicator.

    Args:
        comm: a communicator that only this object uses.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.broken: CommError | None = None
        self._operations = 0
        self._heard: dict[int, int] = {}
        self._calls_made = 0
        self._calls_heard = [0] * self.size
        self._roll_calls: list[tuple[MPI.Request, npt.NDArray[np.int64]]] = []

    @classmethod
    def over(cls, comm: MPI.Comm) -> Operation[MpiComm]:
        """A channel over a duplicate of the caller's communicator (collective)."""
        duplicate, request = comm.Idup()
        yield from _completed(request)
        return cls(duplicate)

    def channel(self) -> Operation[Comm]:
        self._operations += 1
        return (yield from MpiComm.over(self._comm))

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        self._operations += 1
        result = np.empty_like(values)
        yield from _completed(self._comm.Iallreduce(values, result, op=MPI.MAX))
        return result

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        self._operations += 1
        lengths = np.zeros(self.size, dtype=np.int64)
        yield from _completed(self._comm.Iallgather(np.array([len(data)], dtype=np.int64), lengths))
        received = np.empty(int(lengths.sum()), dtype=np.uint8)
        yield from _completed(
            self._comm.Iallgatherv(np.frombuffer(data, dtype=np.uint8), [received, lengths.tolist(), MPI.BYTE])
        )
        return _cut(received, lengths)

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        self._operations += 1
        root = self.rank == 0
        lengths = np.zeros(self.size, dtype=np.int64) if root else None
        yield from _completed(self._comm.Igather(np.array([len(data)], dtype=np.int64), lengths, root=0))
        received = None if lengths is None else np.empty(int(lengths.sum()), dtype=np.uint8)
        target: Any = None if lengths is None else [received, lengths.tolist(), MPI.BYTE]
        yield from _completed(self._comm.Igatherv(np.frombuffer(data, dtype=np.uint8), target, root=0))
        return None if received is None or lengths is None else _cut(received, lengths)

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        self._operations += 1
        length = np.array([len(data) if data is not None else 0], dtype=np.int64)
        yield from _completed(self._comm.Ibcast(length, root=root))
        if self.rank == root and data is not None:
            buffer = np.frombuffer(data, dtype=np.uint8)
        else:
            buffer = np.empty(int(length[0]), dtype=np.uint8)
        yield from _completed(self._comm.Ibcast(buffer, root=root))
        return data if self.rank == root and data is not None else buffer.tobytes()

    def broadcast_into(self, buffer: npt.NDArray[np.uint8], root: int) -> Operation[None]:
        self._operations += 1
        pieces = _pieces(buffer)
        if self.size > _DIRECT_RANKS:
            return _all_completed([self._comm.Ibcast(piece, root=root) for piece in pieces])
        if self.rank != root:
            return _all_completed([self._comm.Irecv(piece, root, _BROADCAST_TAG) for piece in pieces])
        others = [(root + place) % self.size for place in range(1, self.size)]
        return _all_completed([self._comm.Isend(piece, other, _BROADCAST_TAG) for other in others for piece in pieces])

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        tag += _FIRST_USER_TAG
        return _all_completed([self._comm.Isend(piece, dest=to, tag=tag) for piece in _pieces(buffer)])

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        tag += _FIRST_USER_TAG
        return _all_completed([self._comm.Irecv(piece, source=source, tag=tag) for piece in _pieces(buffer)])

    def close(self) -> Operation[None]:
        if self.broken is not None or MPI.Is_finalized():
            return
        self._operations += 1
        # MPI libraries refuse to free a communicator with messages that nobody has received.
        called = np.zeros(self.size, dtype=np.int64)
        yield from _completed(self._comm.Iallgather(np.array([self._calls_made], dtype=np.int64), called))
        others = [rank for rank in range(self.size) if rank != self.rank]
        while any(self._calls_heard[rank] < called[rank] for rank in others):
            self._listen()
            yield False
        yield from _all_completed([request for request, _ in self._roll_calls])
        self.broken = CommError("the channel is closed")
        self._comm.Free()

    def announce(self) -> None:
        self._listen()
        self._roll_calls = [(request, kept) for request, kept in self._roll_calls if not request.Test()]
        self._calls_made += 1
        message = np.array([self._operations], dtype=np.int64)
        for rank in range(self.size):
            if rank != self.rank:
                self._roll_calls.append((self._comm.Isend(message, dest=rank, tag=_ROLL_CALL_TAG), message))

    def heard(self) -> set[int]:
        self._listen()
        return {rank for rank, operations in self._heard.items() if operations >= self._operations} | {self.rank}

    def _listen(self) -> None:
        status = MPI.Status()
        while self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=_ROLL_CALL_TAG, status=status):
            message = np.zeros(1, dtype=np.int64)
            self._comm.Recv(message, source=status.Get_source(), tag=_ROLL_CALL_TAG)
            self._heard[status.Get_source()] = int(message[0])
            self._calls_heard[status.Get_source()] += 1


#: Requests that MPI has not reported as completed. One whose operation was given up stays here for good, and with it
#: the memory that MPI may still read or write.
_under_way: dict[int, list[MPI.Request]] = {}


def _completed(request: MPI.Request) -> Operation[None]:
    return _all_completed([request])


def _all_completed(requests: list[MPI.Request]) -> Operation[None]:
    _under_way[id(requests)] = requests
    return _wait_for(requests)


def _wait_for(requests: list[MPI.Request]) -> Operation[None]:
    try:
        while not MPI.Request.Testall(requests):
            yield False
    except MPI.Exception as error:
        raise CommError(
            "MPI cannot go on with an exchange",
            found=str(error),
            todo="look for a rank or node that is gone; start the job again: complete checkpoints are not affected",
        ) from error
    del _under_way[id(requests)]


def _pieces(buffer: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    return [buffer[at : at + MESSAGE_BYTES] for at in range(0, buffer.size, MESSAGE_BYTES)]


def _cut(received: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    ends = np.cumsum(lengths)
    return [received[end - length : end].tobytes() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
