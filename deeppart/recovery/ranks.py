"""The ranks of a restore, as its steps need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from deeppart.comm import Comm, finish
from deeppart.comm.base import Operation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a restore.

    Attributes:
        comm: between them.
        node_of: node number of each; nodes are numbered from 0 without gaps.
        timeout: seconds without progress after which an exchange ends in an error.
        threads: of this rank, that copy what lies in the memory of its node.
    """

    comm: Comm
    node_of: tuple[int, ...]
    timeout: float
    threads: int = 1

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.rank

    def finish(self, operation: Operation[T], what: str) -> T:
        """Drive an operation to its end and return its result.

        Raises:
            PeerTimeoutError, CommError: as of :func:`deeppart.comm.finish`.
        """
        return finish(self.comm, operation, what, self.timeout)
