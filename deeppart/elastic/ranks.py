"""The ranks that train together."""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch.distributed as dist

from deeppart.comm import TIMEOUT_S, Comm, channel_of_job, finish


class Ranks(Protocol):
    """Who else trains."""

    rank: int
    size: int

    def gather(self, value: Any, what: str) -> list[Any]:
        """Everybody's value, in rank order (collective).

        Args:
            value: what JSON can hold.
            what: is done, for messages.
        """


class OfTorch:
    """The ranks of torch.distributed's default group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, value: Any, what: str) -> list[Any]:
        """As of :class:`Ranks`; what fails is an error of torch."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, json.dumps(value))
        return [json.loads(each) for each in found]


class OfJob:
    """The ranks of a launcher, without torch.distributed: MPI's or those that meet by sockets; or one process."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def gather(self, value: Any, what: str) -> list[Any]:
        """As of :class:`Ranks`."""
        if self.size == 1:
            return [value]
        data = json.dumps(value).encode()
        return [json.loads(each) for each in finish(self._comm, self._comm.allgather(data), what, TIMEOUT_S)]


def ranks_of_job() -> Ranks:
    """Those of torch.distributed where it is initialized, else those that a launcher has started (collective)."""
    if dist.is_available() and dist.is_initialized():
        return OfTorch()
    return OfJob(channel_of_job())
