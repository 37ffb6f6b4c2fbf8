"""What agents say to each other and to zygotes: messages of JSON, one on each line."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from deeppart.progress import Progress

#: The most bytes of a message: of an agent that is known, and before.
_MOST_BYTES, _FIRST_BYTES = 1 << 24, 1 << 16
OBSERVER = -1


class Lines:
    """Messages over a socket.

    Attributes:
        is_known: false until the other end is known to belong to the job.
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
        """The messages that have come, after waiting for any bytes; None once the other end is closed."""
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


# --- from the agent of a node to the one that leads -------------------------------------------------------------------


class Joined(NamedTuple):
    """A node is there.

    Attributes:
        node: its index in the list of nodes; OBSERVER: it is none, but asks for signals to be passed on.
        name: its host name.
        ranks: how many it runs at most.
        port: of it, at which nobody listens now.
        run, epoch: of the last :class:`Start` that it has seen.
        step: the newest that its ranks have reported; -1 for none.
        asked: a signal by which the job was asked to stop; 0 for none.
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
        rank: its number on the node; None: the process that starts ranks has ended, and they with it.
    """

    epoch: int
    rank: int | None
    code: int


class Idle(NamedTuple):
    """All ranks of the node have ended; the others as in :class:`Joined` and :class:`Beat`."""

    epoch: int
    step: int
    port: int
    is_ready: bool


class Beat(NamedTuple):
    """The node is alive, and its ranks have reported this; is_ready: it can fork ranks at once. Also sent by the one
    that leads, with nothing.
    """

    progress: list[Progress] = []  # noqa: RUF012 - never changed
    is_ready: bool = False


class Asked(NamedTuple):
    """The agent of this node got a signal that asks the job to stop."""

    number: int


class Left(NamedTuple):
    """This node takes the one that leads for lost, and follows another."""


# --- from the one that leads ------------------------------------------------------------------------------------------


class View(NamedTuple):
    """The nodes that are there, in the order in which they would lead."""

    nodes: list[int]


class Start(NamedTuple):
    """Start the ranks of this node.

    Attributes:
        run: names the job, from its first start to its end.
        epoch: counts its starts, from 1.
        first: the lowest of its ranks.
        local: how many it runs.
        ranks: of the job.
        group: the number of the node among those that run ranks.
        groups: how many these are.
        address: of the node with rank 0, and ``port`` of it, at which its ranks meet.
        why: what has ended the epoch before; empty in the first one.
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
    """End the ranks of this node: kill them after so many seconds, and send them a signal before, if it is not 0."""

    within_s: float
    first: int = 0


class Leave(NamedTuple):
    """Ask the ranks of this node to make a checkpoint and end: another number of ranks is to start."""


class Dropped(NamedTuple):
    """The connection is closed on purpose: the node was silent, or this agent does not lead any more. It is there."""


class Over(NamedTuple):
    """The job is over; the exit code of the agents."""

    code: int


Message = Joined | Ended | Idle | Beat | Asked | Left | View | Start | Finish | Leave | Dropped | Over
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """A message as JSON."""
    return {"kind": type(message).__name__, **message._asdict()}


def decode(values: dict[str, Any]) -> Message:
    """A message from JSON; raises KeyError or TypeError for anything else."""
    message = _KINDS[values.pop("kind")](**values)
    if isinstance(message, Beat):
        return message._replace(progress=[Progress(*each) for each in message.progress])
    return message
