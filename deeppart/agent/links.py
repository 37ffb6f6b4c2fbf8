"""Connections between the agents of a job: all connect to the leader.

If the job has a secret (``DEEPPART_SECRET_FILE``), both ends prove that they know it by HMAC-SHA256 (RFC 2104) of a
nonce drawn by the other end. Later messages are not authenticated.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import deeppart
from deeppart.agent.job import JobOptions
from deeppart.agent.messages import OBSERVER, Dropped, Joined, Lines, Message, decode, encode
from deeppart.errors import LaunchError

#: Seconds between heartbeats of an agent.
BEAT_S = 1.0
#: Seconds for which each side waits for the next message of a greeting.
_GREETING_S = 3.0
#: Seconds for all attempts to find another leader.
_LOOK_S = 0.3


class Credentials:
    """Identifies the agents of one job.

    Args:
        job: id of the job: the scheduler's job, its nodes, and its command.
        secret: of the user, or None.
    """

    def __init__(self, job: str, secret: bytes | None) -> None:
        self.job, self._secret = job, secret or b""

    def seal(self, role: str, nonce: str, values: Any = None) -> str:
        """The HMAC that proves the secret, for a nonce drawn by the other side."""
        text = json.dumps([deeppart.__version__, self.job, role, nonce, values])
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def connect(address: tuple[str, int], joined: Joined, credentials: Credentials, silence_s: float) -> Lines:
    """Connect to the leader at an address.

    Raises:
        OSError: there is no leader.
        LaunchError: the leader refuses this agent.
    """
    end = socket.create_connection(address, timeout=silence_s)
    try:
        lines, nonce, until_s = Lines(end, is_known=False), secrets.token_hex(16), time.monotonic() + _GREETING_S
        asked = _greeting(lines, until_s)
        values = list(joined)
        greeting = {"version": deeppart.__version__, "job": credentials.job, "joined": values, "nonce": nonce}
        lines.send(greeting | {"seal": credentials.seal("follow", str(asked.get("nonce")), values)})
        answer = _greeting(lines, until_s)
        if "refused" in answer:
            where = f"{address[0]}:{address[1]}"
            todo = "start the same command, of one version and with one secret, once on each node of the job"
            raise LaunchError("an agent does not accept this one", found=str(answer["refused"]), where=where, todo=todo)
        if not hmac.compare_digest(str(answer.get("welcome")), credentials.seal("lead", nonce)):
            raise ConnectionError("it does not know the secret of this job")
        end.settimeout(silence_s)
        lines.is_known = True
        return lines
    except BaseException:
        end.close()
        raise


def find_leader(addresses: Sequence[tuple[str, int]], only_decided: Sequence[bool]) -> bool:
    """Whether an agent leads at one of these addresses; if ``only_decided``, with more than half of the nodes."""
    until_s = time.monotonic() + _LOOK_S
    for address, decided in zip(addresses, only_decided, strict=True):
        try:
            with socket.create_connection(address, timeout=_LOOK_S) as end:
                if _greeting(Lines(end, is_known=False), time.monotonic() + _LOOK_S).get("decided") or not decided:
                    return True
        except OSError:
            pass
        if time.monotonic() > until_s:
            break
    return False


def _greeting(lines: Lines, until_s: float) -> dict[str, Any]:
    """Receive one message, at most until ``until_s``."""
    while (left_s := until_s - time.monotonic()) > 0:
        lines.socket.settimeout(left_s)
        messages = lines.receive(1)  # not what follows this message
        if messages is None:
            break
        if messages:
            return messages[0]
    raise ConnectionError("no agent answers")


def receive(lines: Lines) -> list[Message] | None:
    """The received messages; None once the other agent has closed the connection, or sent something invalid."""
    found = lines.receive()
    try:
        return None if found is None else [decode(each) for each in found]
    except (KeyError, TypeError, AttributeError):
        return None


class Silence:
    """Measures silence, without time for which this process was stopped: messages of that time are yet to be read."""

    def __init__(self) -> None:
        self._looked_s = time.monotonic()

    def passed_s(self) -> float:
        """Seconds since the last call, at most a heartbeat: after more, this process was stopped."""
        before_s, self._looked_s = self._looked_s, time.monotonic()
        return min(self._looked_s - before_s, 1.5 * BEAT_S)


class Received(NamedTuple):
    """Received messages and events.

    Attributes:
        joined: nodes that have joined.
        messages: (index of a node, message).
        ended: nodes whose agents have ended.
        silent: nodes that have been silent for too long.
    """

    joined: list[Joined]
    messages: list[tuple[int, Message]]
    ended: set[int]
    silent: set[int]


class Followers:
    """The other agents of a job, on the leader. With a single node there are none, and no port is opened.

    Attributes:
        is_decided: whether enough nodes follow; set by the leader.
    """

    def __init__(self, options: JobOptions, own: int, credentials: Credentials) -> None:
        self._options, self._own, self._credentials = options, own, credentials
        self._links: dict[int, Lines] = {}
        self._silence = Silence()
        self._silent_s: dict[int, float] = {}
        self._strangers: dict[Lines, tuple[str, float]] = {}  # connection -> (nonce, deadline)
        self.is_decided = False  # more than half of the nodes follow
        self._selector = selectors.DefaultSelector()
        if len(options.nodes) == 1:
            return
        host, port = options.address(own)
        try:
            # The name of a host may resolve to an address that only the host itself can reach.
            listener = socket.create_server((host if host.startswith("127.") else "", port))
        except OSError as error:
            todo = "choose another port with --nodes HOST:PORT,..."
            raise LaunchError("a port is in use", found=str(error), where=f"{host}:{port}", todo=todo) from error
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """For a selector: readable when :meth:`receive` has something to do."""
        return self._selector.fileno()

    def send(self, node: int, message: Message) -> None:
        """Send a message to a node."""
        if node in self._links:
            self._links[node].send(encode(message))

    def send_all(self, message: Message) -> None:
        """Send a message to all nodes."""
        for node in self._links:
            self.send(node, message)

    def receive(self) -> Received:
        """Receive messages and events; nodes that have ended or are silent are removed."""
        now_s, ready = time.monotonic(), {key.fileobj for key, _ in self._selector.select(0)}
        found, passed_s = Received([], [], set(), set()), self._silence.passed_s()
        self._silent_s = {node: silent_s + passed_s for node, silent_s in self._silent_s.items()}
        for node, lines in self._links.items():
            if lines not in ready:
                continue
            messages = receive(lines)
            if messages is None:
                found.ended.add(node)
                continue
            if node != OBSERVER:
                self._silent_s[node] = 0.0
            found.messages.extend((node, message) for message in messages)
        if max(self._silent_s.values(), default=0.0) > self._options.silence_s:
            # Nodes that were cut off at the same time are lost together, though their last messages differ in time.
            least_s = self._options.silence_s - BEAT_S
            found.silent.update(node for node, silent_s in self._silent_s.items() if silent_s > least_s)
        for node in found.silent:
            self.send(node, Dropped())
        for node in found.ended | found.silent:
            self._close(self._links.pop(node))
            self._silent_s.pop(node, None)
        for listener in ready:
            if isinstance(listener, socket.socket):
                self._accept(listener)
        for lines, (_, until_s) in list(self._strangers.items()):
            joined = self._greet(lines) if lines in ready else None
            if joined is not None:
                found.joined.append(joined)
                self._links[joined.node] = lines
                if joined.node != OBSERVER:
                    self._silent_s[joined.node] = 0.0
            elif until_s < now_s and lines in self._strangers:
                self._turn_away(lines)
        return found

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            end, _ = listener.accept()
            end.settimeout(self._options.silence_s)
            lines, nonce = Lines(end, is_known=False), secrets.token_hex(16)
            self._strangers[lines] = nonce, time.monotonic() + _GREETING_S
            self._selector.register(lines, selectors.EVENT_READ)
            lines.send({"nonce": nonce, "decided": self.is_decided})

    def _greet(self, lines: Lines) -> Joined | None:
        """Handle the greeting of a new agent; None if it is incomplete or refused."""
        messages = lines.receive()
        if messages == []:
            return None
        try:
            values = (messages or [{}])[0]
            joined, refused = Joined(*values["joined"]), self._refused(values, self._strangers[lines][0])
        except (TypeError, ValueError, KeyError):
            self._turn_away(lines)
            return None
        if refused is not None:
            lines.send({"refused": refused})
            self._turn_away(lines)
            return None
        del self._strangers[lines]
        lines.is_known = True
        lines.send({"welcome": self._credentials.seal("lead", str(values["nonce"]))})
        return joined

    def _refused(self, values: dict[str, Any], nonce: str) -> str | None:
        """The reason for which a greeting is refused, or None."""
        node = Joined(*values["joined"]).node
        if values["version"] != deeppart.__version__:
            return f"it is of deeppart {deeppart.__version__}, this one of {values['version']}"
        if values["job"] != self._credentials.job:
            return f"it is of job {self._credentials.job}, this one of {values['job']}"
        if not hmac.compare_digest(self._credentials.seal("follow", nonce, values["joined"]), str(values["seal"])):
            return "they have different secrets (DEEPPART_SECRET_FILE)"
        if node == OBSERVER and node not in self._links:
            return None
        if node not in range(len(self._options.nodes)):
            return f"there is no node {node} among {len(self._options.nodes)}"
        return f"node {node} of its list is there already" if node == self._own or node in self._links else None

    def _turn_away(self, lines: Lines) -> None:
        del self._strangers[lines]
        self._close(lines)

    def _close(self, end: Lines | socket.socket) -> None:
        self._selector.unregister(end)
        (end.socket if isinstance(end, Lines) else end).close()

    def drop(self) -> None:
        """Close all connections before the job is over."""
        self.send_all(Dropped())
        self.close(BEAT_S)

    def close(self, within_s: float) -> None:
        """Close all connections, after waiting at most ``within_s`` for the others to read what was sent."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self._close(key.fileobj)
        for lines in list(self._strangers):
            self._turn_away(lines)
        until_s = time.monotonic() + within_s
        for lines in self._links.values():
            with suppress(OSError):
                lines.socket.shutdown(socket.SHUT_WR)
        for lines in self._links.values():
            while (left_s := until_s - time.monotonic()) > 0:
                lines.socket.settimeout(left_s)
                if lines.receive() is None:
                    break
            self._close(lines)
        self._selector.close()
