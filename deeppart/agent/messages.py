"""Messages between agents, and between agents and zygotes: JSON, one message per line."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from deeppart.progress import Progress

#: Most bytes of a message from an authenticated agent, and before the authentication.
_MOST_BYTES, _FIRST_BYTES = 1 << 24, 1 << 16
OBSERVER = -1


class Lines:
    """Messages over a socket.

    Attributes:
        is_known: false until the other end is authenticated.
    """

    def __init__(self, end: socket.socket, *, is_known: bool = True) -> None:
        self.socket, self.is_known = end, is_known
        self._rest = b""

    def fileno(self) -> int:
        """For a selector: readable when :meth:`receive` has something to do."""
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if that fails, :meth:`receive` finds the other end closed."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)

    def receive(self, most_bytes: int = 1 << 16) -> list[dict[str, Any]] | None:
        """Wait for bytes, and return the complete messages; None once the other end is closed."""
        try:
            data = self.socket.recv(most_bytes)
        except OSError:
            data = b""
        if not data or len(self._rest) > (_MOST_BYTES if self.is_known else _FIRST_BYTES):
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return found if all(isinstance(each, dict) for each in found) else None


# --- from the agent of a node to the leader ---------------------------------------------------------------------------


class Joined(NamedTuple):
    """A node has joined.

    Attributes:
        node: its index in the list of nodes; OBSERVER: not a node, but a process that wants signals passed on.
        name: its host name.
        ranks: most ranks that it runs.
        port: a free port of the node.
        run, epoch: of the last :class:`Start` that it has received.
        step: newest step that its ranks have reported; -1 for none.
        asked: the signal by which the job was asked to stop; 0 for none.
    """

    node: int
    name: str
    ranks: int
    port: int
    run: str = ""
    epoch: int = 0
    step: int = -1
    asked: int = 0


class Ended(NamedTuple):
    """A rank has ended; its exit code is negative for a signal.

    Attributes:
        rank: its number on the node; None: the zygote has ended, and all ranks with it.
    """

    epoch: int
    rank: int | None
    code: int


class Idle(NamedTuple):
    """All ranks of the node have ended. Fields: see :class:`Joined` and :class:`Beat`."""

    epoch: int
    step: int
    port: int
    is_ready: bool


class Beat(NamedTuple):
    """Heartbeat of a node, with the progress of its ranks; is_ready: it can fork ranks at once. The leader sends it,
    too, without content.
    """

    progress: list[Progress] = []  # noqa: RUF012 - never changed
    is_ready: bool = False


class Asked(NamedTuple):
    """The agent of this node has received a signal that asks the job to stop."""

    number: int


class Left(NamedTuple):
    """This node considers the leader lost, and follows another one."""


# --- from the leader --------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """The connected nodes, in the order in which they would lead."""

    nodes: list[int]


class Start(NamedTuple):
    """Start the ranks of this node.

    Attributes:
        run: id of the job, from its first start to its end.
        epoch: number of this start, from 1.
        first: lowest rank of the node.
        local: number of its ranks.
        ranks: number of ranks of the job.
        group: index of the node among those that run ranks.
        groups: number of these nodes.
        address, port: of the node with rank 0, where the ranks meet.
        why: reason for the end of the previous epoch; empty in the first one.
    """

    run: str
    epoch: int
    first: int
    local: int
    ranks: int
    group: int
    groups: int
    address: str
    port: int
    why: str = ""


class Finish(NamedTuple):
    """End the ranks of this node: send signal ``first`` if it is not 0, and kill them after some seconds."""

    within_s: float
    first: int = 0


class Leave(NamedTuple):
    """Ask the ranks of this node to make a checkpoint and end, because another number of ranks is to start."""


class Dropped(NamedTuple):
    """The agent closes the connection but is alive: the node was silent, or this agent no longer leads."""


class Over(NamedTuple):
    """The job is over; contains the exit code of the agents."""

    code: int


Message = Joined | Ended | Idle | Beat | Asked | Left | View | Start | Finish | Leave | Dropped | Over
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """Convert a message to JSON."""
    return {"kind": type(message).__name__, **message._asdict()}


def decode(values: dict[str, Any]) -> Message:
    """Convert JSON to a message; raises KeyError or TypeError if it is not one."""
    message = _KINDS[values.pop("kind")](**values)
    if isinstance(message, Beat):
        return message._replace(progress=[Progress(*each) for each in message.progress])
    return message
