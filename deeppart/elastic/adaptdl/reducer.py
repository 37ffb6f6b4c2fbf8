"""Reductions of small Python objects between replicas, which go on beside the training."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deeppart.comm.job import TIMEOUT_S

#: A message has 8 bytes for its length, and so many for what it is about; the rest of a longer one is sent when it is
#: asked for.
_LENGTH_BYTES, _AT_ONCE_BYTES = 8, 248


def default_reduce_fn(a: Any, b: Any) -> Any:
    """The sum, in place where the type has it."""
    a += b
    return a


class Future:
    """The result of a reduction that is under way."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def result(self) -> Any:
        """Wait for it (collective: all replicas ask for theirs in the same order)."""
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


class Reducer:
    """Reductions over torch's gloo. All replicas call them, and ask for their results, in the same order.

    What is sent is pickled, and unpickled by all: replicas trust each other, as all ranks of a job do.
    """

    def __init__(
        self, rank: int, replicas: int, root_host: str, root_port: int, store: dist.Store | None = None
    ) -> None:
        self._replicas = replicas
        self._group: Any = None
        if replicas == 1:
            return
        wait = timedelta(seconds=TIMEOUT_S)
        if store is None:
            store = meeting_store(rank, replicas, root_host, root_port)
        self._store = store  # replica 0 serves it as long as it is held
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("adaptdl", store), rank, replicas, wait)

    def broadcast(self, obj: Any) -> Any:
        """What replica 0 gives (collective)."""
        return self.allreduce(obj, lambda first, _: first)

    def allreduce(self, obj: Any, reduce_fn: Callable[[Any, Any], Any] = default_reduce_fn) -> Any:
        """The objects of all replicas, reduced from the first to the last one (collective)."""
        return self.allreduce_async(obj, reduce_fn).result()

    def allreduce_async(self, obj: Any, reduce_fn: Callable[[Any, Any], Any] = default_reduce_fn) -> Future:
        """Begin one (collective)."""
        if self._group is None:
            return Future(lambda: obj)
        data = pickle.dumps(obj)
        message = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:_AT_ONCE_BYTES]
        sent = _tensor(message, _LENGTH_BYTES + _AT_ONCE_BYTES)
        received = [torch.empty_like(sent) for _ in range(self._replicas)]
        work = self._group.allgather([received], [sent])

        def finish() -> Any:
            work.wait()  # bounded: the group has a timeout
            objects = [pickle.loads(each) for each in self._whole(data, [_bytes(each) for each in received])]
            result = objects[0]
            for each in objects[1:]:
                result = reduce_fn(result, each)
            return result

        return Future(finish)

    def _whole(self, mine: bytes, messages: list[bytes]) -> list[bytes]:
        """The messages without their lengths, and with what was too long to come at once."""
        lengths = [int.from_bytes(each[:_LENGTH_BYTES], "little") for each in messages]
        begun = [each[_LENGTH_BYTES:] for each in messages]
        longest = max(lengths)
        if longest > _AT_ONCE_BYTES:
            sent = _tensor(mine[_AT_ONCE_BYTES:], longest - _AT_ONCE_BYTES)
            received = [torch.empty_like(sent) for _ in range(self._replicas)]
            self._group.allgather([received], [sent]).wait()
            begun = [first + _bytes(rest) for first, rest in zip(begun, received, strict=True)]
        return [each[:length] for each, length in zip(begun, lengths, strict=True)]


def meeting_store(rank: int, replicas: int, host: str, port: int) -> dist.Store:
    """The store at which replicas meet: replica 0's at a host and port, or with port 0 the launcher's."""
    wait = timedelta(seconds=TIMEOUT_S)
    if port:
        return dist.TCPStore(host, port, replicas, is_master=rank == 0, timeout=wait)
    found: tuple[dist.Store, int, int] = next(dist.rendezvous("env://", rank, replicas, timeout=wait))
    return found[0]


def _tensor(data: bytes, size: int) -> torch.Tensor:
    """uint8[size]: the bytes, and zeros."""
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
