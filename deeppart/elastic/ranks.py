"""The ranks that train together."""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch.distributed as dist

from deeppart.extension import JobRanks


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


def ranks_of_job() -> Ranks:
    """Those of torch.distributed where it is initialized, else those that a launcher has started (collective)."""
    if dist.is_available() and dist.is_initialized():
        return OfTorch()
    return JobRanks()
