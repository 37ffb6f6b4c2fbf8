"""The ranks of a restore, as its steps need them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from deeppart.comm import Comm, finish
from deeppart.comm.base import Operation

T = TypeVar("T")
#: The length of a message's head is given in so many bytes.
_LENGTH_BYTES = 8


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
        """Drive an operation to its end and return its result."""
        return finish(self.comm, operation, what, self.timeout)

    def share(self, head: Any, payload: Iterable[bytes], what: str) -> list[tuple[Any, bytes]]:
        """Give all ranks something in JSON, and bytes that it describes (collective); by rank, in one exchange."""
        text = json.dumps(head).encode()
        message = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *payload))
        told = []
        for theirs in self.finish(self.comm.allgather(message), what):
            begins = _LENGTH_BYTES + int.from_bytes(theirs[:_LENGTH_BYTES], "little")
            told.append((json.loads(theirs[_LENGTH_BYTES:begins]), theirs[begins:]))
        return told
