"""The ranks that restore a checkpoint together, and what each of them reads with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deeppart.comm import Comm, Operation, finish, together
from deeppart.nodes import Arena
from deeppart.part import FileSource, Signing, StoredBytes

T = TypeVar("T")
#: Size of the field with the length of a message's head.
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a restore, and what this one reads with.

    Attributes:
        comm: the communicator.
        node_of: node number of each rank; nodes are numbered from 0 without gaps.
        timeout: seconds without progress after which an exchange ends in an error.
        doing: what they do, for messages.
        background: true if training goes on meanwhile.
        signing: the keys to check with, or None.
        threads: this rank's threads that check chunks, and that copy them into the live state.
        at: converts a path in text form, relative to its base directory, to a path.
        open_source: opens a file of a checkpoint, given by its location in text form.
        arena: memory for exchanges that rebuild parts.
    """

    comm: Comm
    node_of: tuple[int, ...]
    timeout: float
    doing: str = "restore"
    background: bool = False
    signing: Signing | None = None
    threads: int = 1
    at: Callable[[str], Path] = Path
    open_source: Callable[[str], StoredBytes] = FileSource
    arena: Arena = field(default_factory=Arena)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.rank

    def finish(self, operation: Operation[T], what: str) -> T:
        """Drive an operation to its end and return its result."""
        return finish(self.comm, operation, what, self.timeout, background=self.background)

    def together(self, do: Callable[[], T], failed: str, what: str, todo: str | None = None) -> T:
        """Call ``do`` on each rank, and continue once it has succeeded on all (collective)."""
        return together(self.comm, do, failed, (what, self.timeout), todo)

    def share(self, head: Any, payload: Iterable[bytes], what: str) -> list[tuple[Any, bytes]]:
        """Send a JSON value, and bytes that it describes, to all ranks (collective); returns them by rank."""
        text = json.dumps(head).encode()
        message = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *payload))
        received = []
        for theirs in self.finish(self.comm.allgather(message), what):
            begins = _LENGTH_BYTES + int.from_bytes(theirs[:_LENGTH_BYTES], "little")
            received.append((json.loads(theirs[_LENGTH_BYTES:begins]), theirs[begins:]))
        return received
