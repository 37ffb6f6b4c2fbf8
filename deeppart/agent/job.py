"""The decisions of a job: when and on which nodes its ranks start, and what follows after a failure.

A failure is the end of a rank with any code but 0 (or 143 after a request to stop), or the loss of a node. The other
ranks are then killed, which ends nearly every hang, and all are started again, as the next epoch. They restore the
newest complete step. This module starts no processes: it exchanges messages with the agents of the nodes.
"""

from __future__ import annotations

import math
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from deeppart.agent.command import STACKS_SIGNAL
from deeppart.agent.messages import (
    Asked,
    Beat,
    Ended,
    Finish,
    Idle,
    Joined,
    Leave,
    Message,
    Over,
    Start,
    View,
)
from deeppart.agent.watch import HangWatch
from deeppart.progress import STOPPED, Progress, time_to_end_s

#: Exit code of a job that was given up because it failed repeatedly.
GIVEN_UP = 1
#: Exit code of a job with too few remaining nodes, which may be started again.
TOO_FEW_NODES = os.EX_TEMPFAIL
#: Most seconds until a lost node that has come back is trusted again.
_MOST_WAIT_S = 3600.0
_FORKS = "the process that forks the ranks"
#: Time for hanging ranks to print their stacks.
_STACKS_WITHIN_S = 1.0


def stop_code(number: int) -> int:
    """The exit code of a job that was asked to stop by signal ``number``, if it is not 0."""
    return STOPPED if number in (0, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) else 128 + number


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a job.

    Attributes:
        ranks: most ranks of each node.
        nodes: the hosts, as ``host:port``, in the order in which they lead; a single node needs no network.
        spares: number of nodes that run no ranks until another one is lost.
        least: fewest ranks with which the job continues.
        failures: number of failures in a row without a new step, after which the job is given up.
        preload: modules that the zygote imports; None for those of the script.
        grace_s: seconds between a signal and killing the ranks.
        hang_s: seconds without a step (or ten times the median step, if that is longer) that count as a hang; None:
            hangs are not detected.
        silence_s: seconds without a message after which a node is lost.
        gather_s: seconds within which nodes must appear at the start, and after the leader was lost.
        steady_s: seconds for which a lost node must be back until it is trusted; doubled by each further loss.
        end_s: end of the job's time, in seconds since 1970; infinite if unknown.
    """

    ranks: int
    nodes: tuple[str, ...] = ("127.0.0.1:0",)
    spares: int = 0
    least: int = 1
    failures: int = 3
    preload: tuple[str, ...] | None = None
    grace_s: float = 120.0
    hang_s: float | None = None
    silence_s: float = 3.0
    gather_s: float = 60.0
    steady_s: float = 10.0
    end_s: float = math.inf

    def address(self, node: int) -> tuple[str, int]:
        """Host and port at which a node's agent listens while it leads."""
        host, _, port = self.nodes[node].rpartition(":")
        return host, int(port)


@dataclass(slots=True)
class _Member:
    """A connected node; ``steady_s``: the time from which it is trusted to stay."""

    name: str
    ranks: int
    port: int
    steady_s: float = 0.0
    first: int = 0
    count: int = 0
    is_ready: bool = False
    progress: list[Progress] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure that ended an epoch; ``code`` None: a lost node; ``rank`` None: the end of the zygote."""

    node: int
    rank: int | None
    code: int | None

    def text(self, node: str) -> str:
        """Description for the ranks of the next epoch; ``node``: name of the node."""
        if self.code is None:
            return f"node {node} was lost"
        who = _FORKS if self.rank is None else f"rank {self.rank}"
        return f"{who} on {node}: {exit_text(self.code)}"


def exit_text(code: int) -> str:
    """``exit code 1``, ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


def _known(step: int) -> int | None:
    return None if step < 0 else step


class Job:
    """The decisions for one job, on the leader.

    Attributes:
        code: exit code once the job is over, before that None.

    Args:
        options: of the job.
        send: called with the index of a node and a message for it.
        tell: called with the name of an event, and its data as keywords.
        expected: number of nodes with which it starts at once.
        until_s: time at which it starts with fewer nodes, by the clock of ``now_s``.
        give_up_s: time at which it ends if there is no room for the fewest ranks.
    """

    def __init__(
        self,
        options: JobOptions,
        send: Callable[[int, Message], object],
        tell: Callable[..., object],
        expected: int,
        until_s: float,
        give_up_s: float,
    ) -> None:
        self._options, self._send, self._tell = options, send, tell
        self._expected, self._until_s, self._give_up_s = expected, until_s, give_up_s
        self._noted_until_s = math.nan  # end of the wait for nodes that was reported last
        self._run, self._epoch, self._newest, self._newest_now = uuid.uuid4().hex, 0, -1, -1
        self._members: dict[int, _Member] = {}
        self._active: list[int] = []  # nodes with ranks in the last epoch, by rank
        self._has_started, self._busy = False, set[int]()  # an epoch is in progress; nodes with running ranks
        self._aside: set[int] = set()
        self._now_s = 0.0  # at the last look
        self._waits_s: dict[int, float] = {}  # seconds for which lost nodes must be back until they are trusted
        self._failure: _Failure | None = None
        self._done: list[int] = []  # ranks of this epoch that have ended with exit code 0, before a failure
        self._why = ""  # reason for the end of the last epoch
        self._failed_at_s, self._kill_s = math.nan, 0.0  # time of the failure; time until its ranks had ended
        self._is_told = True  # the event "training" of this epoch was reported
        self._in_a_row: list[int] = []  # nodes of the failures since the last new step
        self._asked, self._passed = Counter[tuple[int, int]](), Counter[int]()
        self._stopping = 0  # the signal that has requested a stop
        self._wanted: int | None = None  # number of ranks; None: as many as there is room for
        self._is_changing = False  # ranks were asked to stop because another number is wanted
        self._watch = HangWatch(options.hang_s)
        self.code: int | None = None

    @property
    def nodes(self) -> list[int]:
        """The connected nodes."""
        return sorted(self._members)

    def join(self, joined: Joined) -> None:
        """Add a node."""
        steady_s = self._now_s + self._waits_s.get(joined.node, 0.0)
        self._members[joined.node] = _Member(joined.name, joined.ranks, joined.port, steady_s)
        if joined.epoch > self._epoch:
            self._run, self._epoch = joined.run, joined.epoch
        self._newest = max(self._newest, joined.step)
        self._stopping = self._stopping or joined.asked
        self._send_view()

    def lose(self, nodes: Mapping[int, str]) -> None:
        """Remove lost nodes; node -> reason."""
        for node, why in nodes.items():
            member = self._members.pop(node)
            wait_s = min(2 * self._waits_s.get(node, self._options.steady_s / 2), _MOST_WAIT_S)
            self._waits_s[node] = wait_s
            self._tell("node lost", node=member.name, text=f"{why}; trusted again {wait_s:g} s after it has come back")
            if node in self._busy:
                self._busy.remove(node)
                self._fail(_Failure(node, None, None))
        self._send_view()

    def receive(self, node: int, message: Message) -> None:
        """Handle a message of a node."""
        if isinstance(message, Asked):
            self._ask(node, message.number)
            return
        member = self._members.get(node)
        if member is None:
            return
        if isinstance(message, Beat):
            member.progress, member.is_ready = message.progress, message.is_ready
        elif isinstance(message, Ended) and message.epoch == self._epoch and node in self._busy:
            rank = None if message.rank is None else member.first + message.rank
            if message.code != 0:
                self._fail(_Failure(node, rank, message.code))
            elif rank is not None and self._failure is None:
                self._done.append(rank)
        elif isinstance(message, Idle) and message.epoch == self._epoch:
            member.port, member.is_ready = message.port, message.is_ready
            self._newest_now = max(self._newest_now, message.step)
            self._busy.discard(node)

    def want(self, ranks: int) -> None:
        """Set the wanted number of ranks."""
        self._wanted = ranks

    def look(self, now_s: float, left_s: float = math.inf) -> None:
        """Do what is due. Call it after each of the other methods, and each second.

        ``left_s``: seconds until the job's time is up.
        """
        if self.code is None:
            self._look_for_end(left_s)
        self._now_s = now_s
        if self.code is not None:
            return
        if self._failure is not None and math.isnan(self._failed_at_s):
            self._failed_at_s = now_s
        if self._busy:
            self._look_for_steps()
            self._look_for_hang(now_s)
            self._look_for_room()
            return
        if self._has_started:
            self._has_started = False
            self._kill_s, self._failed_at_s = now_s - self._failed_at_s, math.nan
            self._expected, self._until_s, self._give_up_s = 1, now_s, now_s + self._options.gather_s
            self._end_epoch()
        if self.code is None and self._stopping:
            self._finish(stop_code(self._stopping))
        if self.code is None:
            self._start_if_enough(now_s)

    # --- starting ---

    def _usable(self) -> list[int]:
        """The nodes that would run ranks now; those of the last epoch keep their position, and so their files.

        Nodes that are still importing, or were lost lately, are left out if the others have room for the fewest ranks.
        """
        there = [node for node in self.nodes if node not in self._aside]
        at_once = [node for node in there if node in self._busy or self._is_steady(self._members[node])]
        if self._active and self._room(at_once) >= self._options.least:
            there = at_once
        others = [node for node in there if node not in self._active]
        kept = [node if node in there else others.pop(0) if others else None for node in self._active]
        wanted = len(self._options.nodes) - self._options.spares
        return [*(node for node in kept if node is not None), *others][:wanted]

    def _is_steady(self, member: _Member) -> bool:
        """Whether a node can fork ranks at once, and is trusted to stay."""
        return member.is_ready and member.steady_s <= self._now_s

    def _room(self, nodes: Collection[int]) -> int:
        """The number of ranks for which these nodes have room."""
        return sum(self._members[node].ranks for node in nodes)

    def _look_for_room(self) -> None:
        """Ask the ranks to end at their next checkpoint if another number of ranks is to run."""
        room, running = self._room(self._usable()), sum(self._members[node].count for node in self._busy)
        target = min(room, self._wanted or room)
        is_ending = self._failure or self._stopping or self._is_changing or len(self._busy) < len(self._active)
        if target == running or is_ending:
            return
        self._is_changing = True
        self._tell("change", ranks=target)
        for node in self._busy:
            self._send(node, Leave())

    def _start_if_enough(self, now_s: float) -> None:
        usable = self._usable()
        room, least = self._room(usable), self._options.least
        if room < least or (len(usable) < self._expected and now_s < self._until_s):
            missing = [each for at, each in enumerate(self._options.nodes) if at not in self._members]
            text = f"there is room for {room} ranks, of at least {least}; not there: {', '.join(missing)}"
            left_s = self._give_up_s - now_s
            if left_s <= 0:
                self._tell("given up", text=text)
                self._finish(TOO_FEW_NODES)
            elif left_s < self._options.gather_s - self._options.silence_s and self._noted_until_s != self._give_up_s:
                self._noted_until_s = self._give_up_s
                self._tell("note", text=f"waiting {left_s:.0f} s for nodes: {text}")
            return
        ranks = min(room, self._wanted or room)
        for member in self._members.values():
            member.first = member.count = 0
            member.progress = []
        while (left := ranks - sum(self._members[node].count for node in usable)) > 0:
            for node in [each for each in usable if self._members[each].count < self._members[each].ranks][:left]:
                self._members[node].count += 1
        self._active = [node for node in usable if self._members[node].count]
        self._epoch += 1
        self._has_started, self._failure, self._newest_now, self._is_told = True, None, -1, False
        self._done.clear()
        self._watch.begin()
        members, first = [self._members[node] for node in self._active], 0
        address, port = self._options.address(self._active[0])[0], members[0].port
        for group, (node, member) in enumerate(zip(self._active, members, strict=True)):
            start = Start(
                self._run, self._epoch, first, member.count, ranks, group, len(members), address, port, self._why
            )
            member.first, first = first, first + member.count
            self._busy.add(node)
            self._send(node, start)
        names = [each.name for each in members] if len(self._options.nodes) > 1 else None
        self._tell("started", epoch=self._epoch, ranks=ranks, nodes=names)

    # --- ending ---

    def _fail(self, failure: _Failure) -> None:
        """End the epoch at its first failure; after a request to stop, ranks get their grace time."""
        if self._failure is not None:
            return
        self._failure = failure
        asked = failure.code == STOPPED or self._stopping
        for node in self._busy:
            self._send(node, Finish(self._options.grace_s if asked else 0.0))

    def _end_epoch(self) -> None:
        """All ranks have ended."""
        failure, is_changing = self._failure, self._is_changing
        self._failure, self._is_changing = None, False
        self._why = "another number of ranks is wanted" if is_changing else ""
        if failure is None:
            self._finish(0)
        elif self._stopping or (failure.code == STOPPED and not is_changing):
            if failure.code not in (STOPPED, -self._stopping):
                self._tell_failure(failure)
            self._finish(stop_code(self._stopping))
        elif failure.code != STOPPED:
            self._count(failure)

    def _count(self, failure: _Failure) -> None:
        """Count a failure. After too many, set aside the node if it has caused all of them, else give up the job."""
        if self._newest_now > self._newest:
            self._newest, self._in_a_row = self._newest_now, []
        self._in_a_row.append(failure.node)
        self._why = failure.text(self._options.nodes[failure.node].rpartition(":")[0])
        self._tell_failure(failure)
        if len(self._in_a_row) <= self._options.failures:
            return
        left = {*self._members} - self._aside - {failure.node}
        if len(set(self._in_a_row)) == 1 and failure.node in self._members and self._room(left) >= self._options.least:
            name = self._members[failure.node].name
            self._tell("set aside", node=name, text=f"{len(self._in_a_row)} failures in a row")
            self._aside.add(failure.node)
            self._in_a_row = []
        else:
            self._tell("given up", text=f"{len(self._in_a_row)} failures in a row without a new step")
            self._finish(GIVEN_UP)

    def _tell_failure(self, failure: _Failure) -> None:
        if failure.code is not None:  # the loss of a node is another event
            several = len(self._options.nodes) > 1 and failure.node in self._members
            name = self._members[failure.node].name if several else None
            step = max(self._newest, self._newest_now)
            known = {"node": name, "exit_code": failure.code, "step": _known(step)}
            text = f"it was {_FORKS}" if failure.rank is None else self._done_text()
            self._tell("failed", rank=failure.rank, **known, text=text)

    def _done_text(self) -> str | None:
        """Name the ranks that had finished while others had not, and may have been waiting for them."""
        ranks = " and ".join(map(str, sorted(self._done)[:10]))
        return f"after rank {ranks} had ended with exit code 0" if ranks else None

    def _finish(self, code: int) -> None:
        self.code = code
        for node in self._members:
            self._send(node, Over(code))

    # --- signals, steps and hangs ---

    def _ask(self, node: int, number: int) -> None:
        """Pass a signal on to the ranks: once if several agents received it, again if an agent receives it again."""
        self._asked[node, number] += 1
        if self._asked[node, number] <= self._passed[number]:
            return
        self._passed[number] += 1
        self._stopping = self._stopping or number
        self._tell("signal", text=signal.Signals(number).name)
        self._stop_ranks(number)

    def _stop_ranks(self, number: int, within_s: float = 0.0) -> None:
        for node in self._busy:
            self._send(node, Finish(max(within_s, self._options.grace_s), number))

    def _look_for_end(self, left_s: float) -> None:
        """Ask the ranks for their last checkpoint early enough that it is complete when the time is up."""
        known = [each.safe_s for member in self._members.values() for each in member.progress]
        if left_s > time_to_end_s(max(known, default=0.0)) or self._stopping or self._failure:
            return
        if not self._epoch:  # the next job would not have more time, either
            self._tell("given up", text=f"the time is up in {max(left_s, 0.0):.0f} s, too early for a checkpoint")
            self._finish(GIVEN_UP)
            return
        self._stopping = signal.SIGUSR1
        self._tell("end", text=f"the time is up in {max(left_s, 0.0):.0f} s: the last checkpoint")
        self._stop_ranks(signal.SIGUSR1, left_s)

    def _reported(self) -> list[Progress]:
        """The progress of all ranks in order, including ended ones; empty until all nodes have reported."""
        found = [self._members[node].progress if node in self._members else [] for node in self._active]
        return [rank for ranks in found for rank in ranks] if self._failure is None and all(found) else []

    def _look_for_steps(self) -> None:
        """Report once per epoch that all ranks have made a step, and how long it took."""
        ranks = [] if self._is_told else self._reported()
        if not ranks or not all(each.stepped_s for each in ranks):
            return
        self._is_told = True
        ready_s, restored_s, stepped_s = (max(column) for column in zip(*(each[-3:] for each in ranks), strict=True))
        known = {"kill_s": self._kill_s} if self._epoch > 1 and not math.isnan(self._kill_s) else {}
        if 0.0 < ready_s <= restored_s:
            known |= {"start_s": ready_s, "restore_s": restored_s - ready_s, "step_s": stepped_s - restored_s}
        rounded = {name: round(value, 3) for name, value in known.items()}
        self._tell("training", epoch=self._epoch, step=_known(max(each.step for each in ranks)), **rounded)

    def _look_for_hang(self, now_s: float) -> None:
        ranks = [] if self._stopping else self._reported()
        hang = self._watch.look(ranks, now_s) if ranks else None
        if hang is None:
            return
        behind = [rank for rank in hang.ranks if rank not in self._done] or hang.ranks
        names = " and ".join(f"rank {rank}" for rank in behind)
        self._tell("hang", text=f"no step for {hang.silent_s:.0f} s, of {hang.step_s:.2g} s each; behind: {names}")
        first = behind[0]
        (node,) = (each for each in self._active if 0 <= first - self._members[each].first < self._members[each].count)
        self._failure = _Failure(node, first, -signal.SIGKILL)
        for node in self._busy:
            self._send(node, Finish(_STACKS_WITHIN_S, STACKS_SIGNAL))

    def _send_view(self) -> None:
        for node in self._members:
            self._send(node, View(self.nodes))
