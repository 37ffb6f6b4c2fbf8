"""The agent of one node: carries out what the one that leads has decided, or leads itself.

The first node of the list leads. When it is lost, the next one does, if it reaches more than half of the nodes that
were there before, or half of them with the first of these: so two parts of a cluster that do not reach each other never
both go on. A node is lost when its agent has ended, or has been silent for three seconds.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deeppart.agent.command import Command
from deeppart.agent.job import TOO_FEW_NODES, Job, JobOptions, stop_code
from deeppart.agent.links import BEAT_S, Credentials, Followers, Silence, connect, receive
from deeppart.agent.messages import (
    Asked,
    Beat,
    Finish,
    Joined,
    Left,
    Message,
    Over,
    View,
    encode,
)
from deeppart.agent.node import Node, free_port, own_directory

#: Signals that are passed on to the ranks.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
_TRY_AGAIN_S = 0.1
#: The one that leads waits so long for the others to take note of the end.
_END_S = 3.0


class Agent:
    """The agent of one node, to the end of the job. One thread, which must be the main one.

    Args:
        command: what each rank runs.
        options: how the job is run.
        tell: called with the name of an event, and what is known of it by keyword.
        node: the index of this one.
        name: its host name.
        credentials: of the job; not needed for one node.
    """

    def __init__(
        self,
        command: Command,
        options: JobOptions,
        tell: Callable[..., object],
        node: int = 0,
        name: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        self._command, self._options, self._tell = command, options, tell
        self._index, self._name, self._credentials = node, name, credentials or Credentials("", None)
        self._reports: deque[Message] = deque()  # of this node, for the one that leads
        self._signals: list[int] = []  # that this agent got and the one that leads does not know of
        self._asked = 0
        self._beat_at_s = 0.0
        self._view: list[int] = []  # the nodes that were there last
        self._has_joined = False  # there is an agent that leads
        self._why = "none was asked"

    def run(self) -> int:
        """Run the job; returns its exit code."""
        options = self._options
        with own_directory() as directory, _signals() as self._wakes:

            def say(text: str) -> None:
                self._tell("note", text=text)

            report = self._reports.append
            self._node = Node(self._command, options.ranks, options.preload, directory, report, say)
            try:
                return self._run()
            finally:
                self._node.close()

    def _run(self) -> int:
        """Lead or follow, until the job is over."""
        options = self._options
        self._view = list(range(len(options.nodes)))
        # At the start agents come one after the other; later those that do not answer at once are lost.
        wait_s, patience_s = options.gather_s, options.gather_s / 2
        candidates, lost = self._view, -1
        expected = len(self._view) - options.spares
        while True:
            until_s, self._has_joined = time.monotonic() + options.gather_s, False
            while not self._has_joined:
                for node in candidates:
                    now_s = time.monotonic()
                    if self._asked or now_s > until_s:
                        return self._without_others()
                    if node == self._index:
                        code = self._lead(expected, min(until_s, now_s + wait_s))
                    else:
                        code = self._follow(node, now_s if node == lost else min(until_s, now_s + patience_s))
                    if code is not None:
                        return code
                    if self._has_joined:
                        lost = node
                        break
            self._tell("note", text=f"the agent of node {lost} does not lead any more, or cannot be reached")
            self._node.do(Finish(0.0))
            while not self._node.is_idle:
                self._wait()
            self._reports.clear()
            wait_s, patience_s = 3 * options.silence_s, options.silence_s
            # One that has closed the connection may lead on: this node was the silent one.
            others = [node for node in self._view if node != lost]
            candidates = [*others, lost] if lost in self._view else [lost, *others]
            expected = min(len(others), expected)

    def _without_others(self) -> int:
        """The exit code while no agent leads."""
        if self._asked:
            return stop_code(self._asked)
        self._tell("given up", text=f"no agent leads, or too few nodes answer: {self._why}")
        return TOO_FEW_NODES

    def _joined(self) -> Joined:
        node = self._node
        return Joined(
            self._index, self._name, self._options.ranks, free_port(), node.epoch, node.newest, self._asked
        )  # fmt: skip

    def _follow(self, leader: int, until_s: float) -> int | None:
        """Do what another agent decides; the exit code once the job is over, None if it does not lead (any more)."""
        options = self._options
        while True:
            try:
                lines = connect(options.address(leader), self._joined(), self._credentials, options.silence_s)
                break
            except OSError as error:
                self._why = f"{options.nodes[leader]}: {error}"
            if self._asked or time.monotonic() > until_s:
                return None
            self._wait(within_s=_TRY_AGAIN_S)
        self._has_joined, silence, silent_s = True, Silence(), 0.0
        with lines.socket:
            while True:
                ready, silent_s = self._wait([lines]), silent_s + silence.passed_s()
                if ready:
                    messages = receive(lines)
                    if messages is None:
                        self._view = [node for node in self._view if node != leader]  # its agent has ended
                        return None
                    silent_s = 0.0
                    for message in messages:
                        if isinstance(message, Over):
                            return message.code
                        if isinstance(message, View):
                            self._view = message.nodes
                        else:
                            self._node.do(message)
                elif silent_s > options.silence_s:
                    lines.send(encode(Left()))
                    return None
                for message in self._due():
                    lines.send(encode(message))

    def _lead(self, expected: int, until_s: float) -> int | None:
        """Decide for the job; its exit code once it is over, None if too few nodes follow."""
        options, own = self._options, self._index
        several = len(options.nodes) > 1
        followers = Followers(options, own, self._credentials) if several else None

        def send(node: int, message: Message) -> None:
            if node == own:
                self._node.do(message)
            elif followers is not None:
                followers.send(node, message)

        job = Job(options, send, self._tell, expected, until_s)
        job.join(self._joined())
        while True:
            ready = self._wait(followers.files() if followers is not None else ())
            if followers is not None:
                found = followers.receive(ready)
                for node, message in found.messages:
                    job.receive(node, message)
                gone = found.ended | found.silent
                if found.has_left or (found.silent and not _goes_on(set(job.nodes) - gone, self._view)):
                    followers.close()
                    return None
                if gone:
                    job.lose(gone)
                for joined in found.joined:
                    job.join(joined)
            for message in self._due():
                job.receive(own, message)
                if isinstance(message, Beat) and followers is not None:
                    followers.send_all(Beat())
            self._has_joined = self._has_joined or _goes_on(job.nodes, self._view)
            if self._has_joined:
                self._view = job.nodes
                job.look(time.monotonic())
                if job.code is not None:
                    if followers is not None:
                        followers.close(_END_S)
                    return job.code
            elif self._asked or time.monotonic() > until_s:
                assert followers is not None
                followers.close()
                return None

    def _due(self) -> Iterator[Message]:
        """What the agent that leads is to know by now."""
        while self._signals:
            yield Asked(self._signals.pop(0))
        while self._reports:
            yield self._reports.popleft()
        if time.monotonic() >= self._beat_at_s:
            self._beat_at_s = time.monotonic() + BEAT_S
            yield Beat(self._node.progress())

    def _wait(self, files: Sequence[Any] = (), within_s: float = BEAT_S) -> list[Any]:
        """Wait a moment, for this node, for signals and for files; returns the files that are readable."""
        ready = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakes, selectors.EVENT_READ)
            self._node.register(selector)
            for each in files:
                selector.register(each, selectors.EVENT_READ, files)
            due_s = max(self._beat_at_s - time.monotonic(), 0.0)
            for key, _ in selector.select(min(within_s, due_s, self._node.due_in_s())):
                if key.data is self._node:
                    self._node.receive(key.fileobj)
                elif key.data is files:
                    ready.append(key.fileobj)
                else:
                    self._signals += [number for number in self._wakes.recv(64) if number in SIGNALS]
        if self._signals and not self._asked:
            self._asked = self._signals[0]
        self._node.look()
        return ready


def _goes_on(nodes: Collection[int], view: Sequence[int]) -> bool:
    """Whether these nodes, of those that were there, go on without the others."""
    found = set(nodes) & set(view)
    return 2 * len(found) > len(view) or (2 * len(found) == len(view) and min(view) in found)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket from which the numbers of received signals are read."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before: dict[signal.Signals, Any] = {
        each: signal.getsignal(each) for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN
    }
    old = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        for each in before:
            signal.signal(each, lambda number, frame: None)
        yield ours
    finally:
        signal.set_wakeup_fd(old)
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        ours.close()
        theirs.close()
