"""The communicator of a job with one process: every operation finishes at once, and MPI is not imported."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, Int64s, Operation, immediately
from deeppart.errors import CommError


class SingleComm:
    """A single rank."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.broken: CommError | None = None

    def channel(self) -> Operation[Comm]:
        return immediately(SingleComm())

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        return immediately(values)

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        return immediately([data])

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        return immediately([data])

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        assert data is not None
        return immediately(data)

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        raise CommError("a job of one process has nobody to send to", found=f"rank {to}")

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        raise CommError("a job of one process has nobody to receive from", found=f"rank {source}")

    def release(self) -> None:
        """Nothing to release."""

    def heartbeat(self) -> None:
        """No other rank listens."""

    def present(self) -> set[int]:
        return {0}

    def abandon(self, error: CommError) -> None:
        self.broken = self.broken or error

    def abandoned_by(self) -> set[int]:
        return set()

    def given_up_by(self) -> set[int]:
        return set()
