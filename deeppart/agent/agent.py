"""The agent of one node: carries out the decisions of the leading agent (the leader), or leads itself.

The first node of the list leads. When it is lost, the next one leads, if it reaches more than half of the previous
nodes, or half of them including the first: so two parts of a partitioned cluster never both continue. A node is lost
when its agent has ended, or has been silent for three seconds.
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

from deeppart.agent.command import SIGNALS, Command
from deeppart.agent.job import TOO_FEW_NODES, Job, JobOptions, stop_code
from deeppart.agent.links import BEAT_S, Credentials, Followers, Silence, connect, find_leader, receive
from deeppart.agent.messages import (
    OBSERVER,
    Asked,
    Beat,
    Dropped,
    Finish,
    Joined,
    Left,
    Message,
    Over,
    View,
    encode,
)
from deeppart.agent.node import Node, free_port, own_directory
from deeppart.agent.wanted import WantedRanks
from deeppart.errors import LaunchError

_TRY_AGAIN_S = 0.1
#: Time that the leader gives the others to receive the end of the job.
_END_S = 3.0
_ENDED = "its agent has ended"


class Agent:
    """The agent of one node, until the end of the job. Runs in the main thread only.

    Args:
        command: the command of each rank.
        options: of the job.
        tell: called with the name of an event, and its data as keywords.
        node: index of this node.
        name: its host name.
        credentials: of the job; not needed for one node.
        wanted: the wanted number of ranks; None for as many as there is room for.
    """

    def __init__(
        self,
        command: Command,
        options: JobOptions,
        tell: Callable[..., object],
        node: int = 0,
        name: str = "",
        credentials: Credentials | None = None,
        wanted: WantedRanks | None = None,
    ) -> None:
        self._wanted, self._began_s = wanted, time.monotonic()
        self._command, self._options, self._tell = command, options, tell
        self._index, self._name, self._credentials = node, name, credentials or Credentials("", None)
        self._reports: deque[Message] = deque()  # of this node, for the leader
        self._signals: list[int] = []  # received by this agent and not yet known to the leader
        self._asked, self._asked_at_s = 0, 0.0
        self._beat_at_s = self._look_at_s = 0.0
        self._others = deque(range(len(options.nodes)))
        self._view: list[int] = []  # the last known nodes of the job
        self._has_joined = self._was_accepted = False  # there is a leader; a leader has accepted this agent
        self._is_refused = False  # the leader has refused this agent
        self._why = "none was asked"

    def run(self) -> int:
        """Run the job; returns its exit code."""
        options = self._options
        with own_directory() as directory, received_signals() as self._wakes:

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
        wanted = len(self._view) - options.spares
        others, lost = [node for node in self._view if node != self._index], -1
        # At the start, agents appear one after another; later, an agent that does not answer at once is lost.
        patience_s = options.gather_s / 2
        while True:
            before = sum(node < self._index for node in others if node != lost)  # those that would lead first
            there = sum(node != lost for node in others) + 1
            code, lost = self._take_part(others, before * patience_s, min(there, wanted))
            if code is not None:
                return code
            other = f"node {options.nodes[lost]} is not followed any more"
            what = "this node does not lead any more" if lost == self._index else other
            self._tell("note", text=f"{what}: {self._why}")
            self._node.do(Finish(0.0))
            while not self._node.is_idle:
                self._wait()
            self._reports.clear()
            patience_s = options.silence_s
            others = [node for node in self._view if node not in (lost, self._index)]
            if lost != self._index:  # it may still lead, if this node was the silent one
                others.append(lost)

    def _take_part(self, others: Sequence[int], lead_after_s: float, expected: int) -> tuple[int | None, int]:
        """Follow another agent, or lead. Returns the exit code once the job is over, else None; and the lost agent."""
        self._has_joined, began_s, pause_s = False, time.monotonic(), _TRY_AGAIN_S
        while True:
            self._is_refused = False
            for node in others:
                code = self._follow(node)
                if code is not None or self._has_joined:
                    return code, node
            passed_s = time.monotonic() - began_s
            if self._gives_up(began_s + self._options.gather_s):
                return self._without_others(), self._index
            if passed_s >= lead_after_s and not self._is_refused:
                code = self._lead(expected, began_s + self._options.gather_s)
                if code is not None or self._has_joined:
                    return code, self._index
            self._wait(within_s=pause_s)
            pause_s = min(2 * pause_s, BEAT_S)

    def _gives_up(self, until_s: float) -> bool:
        """Whether to stop waiting for a leader; after a signal, which a leader may not know, this is soon."""
        now_s = time.monotonic()
        known_s = 2 * self._options.silence_s if self._was_accepted else 0.0
        return now_s > until_s or (bool(self._asked) and now_s > self._asked_at_s + known_s)

    def _without_others(self) -> int:
        """The exit code if there is no leader."""
        if self._asked:
            return stop_code(self._asked)
        self._tell("given up", text=f"no agent leads, or too few nodes answer; one that does not: {self._why}")
        return TOO_FEW_NODES

    def _silence_text(self) -> str:
        return f"nothing was heard of it for {self._options.silence_s:g} s"

    def _joined(self) -> Joined:
        last, newest = self._node.last, self._node.newest
        ranks, port = self._options.ranks, free_port()
        return Joined(self._index, self._name, ranks, port, last.run, last.epoch, newest, self._asked)

    def _follow(self, leader: int) -> int | None:
        """Follow another agent. Returns the exit code once the job is over, None if the agent does not lead."""
        options = self._options
        try:
            lines = connect(options.address(leader), self._joined(), self._credentials, options.silence_s)
        except (OSError, LaunchError) as error:
            # The leader may not have noticed yet that an earlier agent of this node is gone.
            is_new = time.monotonic() < self._began_s + 2 * options.silence_s
            if isinstance(error, LaunchError) and not self._was_accepted and not is_new:
                raise
            self._is_refused |= isinstance(error, LaunchError)
            self._why = f"{options.nodes[leader]}: {error}"
            return None
        self._has_joined = self._was_accepted = True
        silence, silent_s = Silence(), 0.0
        is_dropped = False
        with lines.socket:
            while True:
                ready, silent_s = self._wait([lines]), silent_s + silence.passed_s()
                if ready:
                    messages = receive(lines)
                    if messages is None:
                        self._why = "it was cut off from this one or from too many others"
                        if not is_dropped:
                            self._why, self._view = _ENDED, [node for node in self._view if node != leader]
                        return None
                    silent_s = 0.0
                    for message in messages:
                        if isinstance(message, Over):
                            return message.code
                        is_dropped = is_dropped or isinstance(message, Dropped)
                        if isinstance(message, View):
                            self._view = message.nodes
                        else:
                            self._node.do(message)
                elif silent_s > options.silence_s:
                    self._why = self._silence_text()
                    lines.send(encode(Left()))
                    return None
                for message in self._due():
                    lines.send(encode(message))

    def _lead(self, expected: int, until_s: float) -> int | None:
        """Lead the job. Returns its exit code once it is over, None if too few nodes follow."""
        options, own = self._options, self._index
        followers = Followers(options, own, self._credentials)

        def send(node: int, message: Message) -> None:
            if node == own:
                self._node.do(message)
            else:
                followers.send(node, message)

        job = Job(options, send, self._tell, expected, until_s, time.monotonic() + options.gather_s)
        job.join(self._joined())
        while True:
            self._wait([followers])
            found = followers.receive()
            for node, message in found.messages:
                job.receive(node, message)
            gone = dict.fromkeys(found.ended, _ENDED) | dict.fromkeys(found.silent, self._silence_text())
            gone.pop(OBSERVER, None)
            has_left = any(isinstance(message, Left) for _, message in found.messages)
            if has_left or (found.silent and not _goes_on(set(job.nodes) - gone.keys(), self._view)):
                self._why = "another one takes it for lost, or too many others are lost"
                followers.drop()
                return None
            if gone:
                job.lose(gone)
            for joined in found.joined:
                if joined.node != OBSERVER:
                    job.join(joined)
            for message in self._due():
                job.receive(own, message)
                if isinstance(message, Beat):
                    followers.send_all(Beat())
            self._has_joined = self._has_joined or _goes_on(job.nodes, self._view)
            if self._has_joined:
                self._view, followers.is_decided = job.nodes, True
                if self._wanted is not None:
                    self._want(job, self._wanted)
                job.look(time.monotonic(), options.end_s - time.time())
                if job.code is not None:
                    followers.send(OBSERVER, Over(job.code))
                    followers.close(_END_S)
                    return job.code
            elif self._gives_up(until_s) or self._gives_way(job.nodes):
                followers.drop()
                return None

    def _gives_way(self, nodes: Sequence[int]) -> bool:
        """Whether another agent leads, which these nodes may follow instead. Checked once a second while too few
        follow.
        """
        if time.monotonic() < self._look_at_s:
            return False
        self._look_at_s = time.monotonic() + BEAT_S
        self._others.rotate(-1)
        others = [node for node in self._others if node not in nodes]
        return find_leader([self._options.address(node) for node in others], [node > self._index for node in others])

    def _want(self, job: Job, wanted: WantedRanks) -> None:
        job.want(wanted.now())
        if wanted.refused is not None:
            self._tell("note", text=f"not used: {wanted.refused}")
            wanted.refused = None

    def _due(self) -> Iterator[Message]:
        """The messages that are due to the leader."""
        while self._signals:
            yield Asked(self._signals.pop(0))
        while self._reports:
            yield self._reports.popleft()
        if time.monotonic() >= self._beat_at_s:
            self._beat_at_s = time.monotonic() + BEAT_S
            yield Beat(self._node.progress(), self._node.is_ready)

    def _wait(self, files: Sequence[Any] = (), within_s: float = BEAT_S) -> list[Any]:
        """Wait for this node, for signals and for files, at most ``within_s``. Returns the readable files."""
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
            self._asked, self._asked_at_s = self._signals[0], time.monotonic()
        self._node.look()
        return ready


def _goes_on(nodes: Collection[int], view: Sequence[int]) -> bool:
    """Whether these nodes of the previous ones continue without the others."""
    found = set(nodes) & set(view)
    return 2 * len(found) > len(view) or (2 * len(found) == len(view) and min(view) in found)


@contextmanager
def received_signals() -> Iterator[socket.socket]:
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
