"""How the agents of a job find each other: all connect to the one that leads.

Both ends prove that they have the secret of the job, if there is one (``DEEPPART_SECRET_FILE``), by HMAC-SHA256 (RFC
2104) of a number that the other one has drawn. What they say later is not authenticated.
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

#: Each agent says that it is alive so often.
BEAT_S = 1.0
#: How long each side waits for the other's part of a greeting.
_GREETING_S = 3.0
#: How long all attempts of one look for another leader may take.
_LOOK_S = 0.3


class Credentials:
    """What agents of one job have in common.

    Args:
        job: what names it: that of the scheduler, its nodes, and what it runs.
        secret: of its user; None if there is none.
    """

    def __init__(self, job: str, secret: bytes | None) -> None:
        self.job, self._secret = job, secret or b""

    def seal(self, role: str, nonce: str, values: Any = None) -> str:
        """What proves the secret, for a number that the other side has drawn."""
        text = json.dumps([deeppart.__version__, self.job, role, nonce, values])
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def connect(address: tuple[str, int], joined: Joined, credentials: Credentials, silence_s: float) -> Lines:
    """Follow the agent that leads at an address.

    Raises:
        OSError: none does.
        LaunchError: it does not accept this one.
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
    """Whether an agent leads at one of these addresses; at some, only if more than half of the nodes follow it."""
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
    """One message, until a time at most."""
    while (left_s := until_s - time.monotonic()) > 0:
        lines.socket.settimeout(left_s)
        messages = lines.receive(1)  # not what follows this message
        if messages is None:
            break
        if messages:
            return messages[0]
    raise ConnectionError("no agent answers")


def receive(lines: Lines) -> list[Message] | None:
    """The messages that have come; None once the other agent has closed, or what it says cannot be read."""
    found = lines.receive()
    try:
        return None if found is None else [decode(each) for each in found]
    except (KeyError, TypeError, AttributeError):
        return None


class Silence:
    """Measures silence. While this process was stopped no node was silent: what they said has yet to be read."""

    def __init__(self) -> None:
        self._looked_s = time.monotonic()

    def passed_s(self) -> float:
        """Since the last call, which is no longer ago than a beat unless this process was stopped."""
        before_s, self._looked_s = self._looked_s, time.monotonic()
        return min(self._looked_s - before_s, 1.5 * BEAT_S)


class Received(NamedTuple):
    """What was received.

    Attributes:
        joined: nodes that have joined.
        messages: index of a node, and what it has said.
        ended: nodes whose agents have ended.
        silent: nodes that have said nothing for too long.
    """

    joined: list[Joined]
    messages: list[tuple[int, Message]]
    ended: set[int]
    silent: set[int]


class Followers:
    """The other agents of a job, on the one that leads. With one node there are none, and nothing listens.

    Attributes:
        is_decided: whether enough nodes follow; to be set.
    """

    def __init__(self, options: JobOptions, own: int, credentials: Credentials) -> None:
        self._options, self._own, self._credentials = options, own, credentials
        self._links: dict[int, Lines] = {}
        self._silence = Silence()
        self._silent_s: dict[int, float] = {}
        self._strangers: dict[Lines, tuple[str, float]] = {}  # what each was asked, and until when
        self.is_decided = False  # more than half of the nodes follow
        self._selector = selectors.DefaultSelector()
        if len(options.nodes) == 1:
            return
        host, port = options.address(own)
        try:
            # A host's name may lead to an address that only itself can reach.
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
        """Take what has come; nodes that have ended or are silent are left out from now on."""
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
            # Nodes that were cut off together are lost together, although each was heard at another moment.
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
        """Take the greeting of a new agent; None if it has not all come, or is not accepted."""
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
        """Why a greeting is not accepted."""
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
        """Close all connections, although the job is not over."""
        self.send_all(Dropped())
        self.close(BEAT_S)

    def close(self, within_s: float) -> None:
        """Close all connections; wait a moment for the others to have read what was sent."""
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
