"""The ranks of a job that does not use torch.distributed."""

from __future__ import annotations

import json
from typing import Any

from deeppart.comm import TIMEOUT_S, channel_of_job, finish


class JobRanks:
    """The ranks that a launcher has started, MPI's or those that meet by sockets; or one process (made collectively).

    Attributes:
        rank, size: this rank, and how many there are.
    """

    def __init__(self) -> None:
        self._comm = channel_of_job()
        self.rank, self.size = self._comm.rank, self._comm.size

    def gather(self, value: Any, what: str) -> list[Any]:
        """Every rank's value, in rank order (collective).

        Args:
            value: what JSON can hold.
            what: is done, for messages.

        Raises:
            PeerTimeoutError: a rank did not come.
        """
        if self.size == 1:
            return [value]
        data = json.dumps(value).encode()
        return [json.loads(each) for each in finish(self._comm, self._comm.allgather(data), what, TIMEOUT_S)]
