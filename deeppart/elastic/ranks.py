"""The ranks that train together."""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch.distributed as dist

from deeppart.extension import JobRanks


class Ranks(Protocol):
    """A group of ranks that can exchange small values.

    Attributes:
        rank: of this process.
        size: number of ranks.
    """

    rank: int
    size: int

    def gather(self, value: Any, what: str) -> list[Any]:
        """The values of all ranks in rank order (collective).

        Args:
            value: of this rank; representable in JSON.
            what: the operation, for error messages.
        """


class TorchRanks:
    """The ranks of torch.distributed's default group; errors are those of torch."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, value: Any, what: str) -> list[Any]:
        """See :meth:`Ranks.gather`."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, json.dumps(value))
        return [json.loads(each) for each in found]


def ranks_of_job() -> Ranks:
    """The ranks of torch.distributed if it is initialized, else those of the launcher (collective)."""
    if dist.is_available() and dist.is_initialized():
        return TorchRanks()
    return JobRanks()
