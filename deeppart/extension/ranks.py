"""The ranks of a job that does not use torch.distributed."""

from __future__ import annotations

import json
from typing import Any

from deeppart.comm import TIMEOUT_S, channel_of_job, finish


class JobRanks:
    """The ranks of a job, connected by MPI or sockets; or one process. The constructor is collective.

    Attributes:
        rank, size: this rank, and the world size.
    """

    def __init__(self) -> None:
        self._comm = channel_of_job()
        self.rank, self.size = self._comm.rank, self._comm.size

    def gather(self, value: Any, what: str) -> list[Any]:
        """Every rank's value, in rank order (collective).

        Args:
            value: a JSON value.
            what: the operation, for messages.

        Raises:
            PeerTimeoutError: a rank did not take part in time.
        """
        if self.size == 1:
            return [value]
        data = json.dumps(value).encode()
        return [json.loads(each) for each in finish(self._comm, self._comm.allgather(data), what, TIMEOUT_S)]
