"""The communicator of a job with one process: every operation finishes at once, and MPI is not imported."""

from __future__ import annotations

import threading

from deeppart.comm.channel import Comm
from deeppart.comm.messages import Bytes, Offer, Transfer
from deeppart.comm.transport import Transport
from deeppart.errors import CommError


class SingleComm(Comm):
    """A single rank."""

    def __init__(self) -> None:
        super().__init__(_Alone())


class NotConnected(SingleComm):
    """A stand-in until there is a communicator: errors of waits need to know which ranks have arrived.

    Attributes:
        arrived: ranks that have, as far as known.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size, self.arrived = rank, size, {rank}

    def present(self) -> set[int]:
        """Ranks that have arrived, as far as known."""
        return set(self.arrived)


class _Alone(Transport):
    """The messages of a single rank: only to itself."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self._meet(0, 1)

    def _progress(self) -> bool:
        return True

    def _end(self) -> None:
        pass

    def _put(self, outgoing: Transfer, message: bytes) -> None:
        raise CommError("a job of one process has nobody to send to", found=f"rank {outgoing.other}")

    def _offer(self, outgoing: Transfer, array: Bytes) -> None:
        self._put(outgoing, b"")

    def _accept(self, incoming: Transfer, offer: Offer) -> None:
        raise AssertionError("nobody offers anything")

    def _tell(self, to: int, message: bytes) -> None:
        raise AssertionError("there is no other rank")
