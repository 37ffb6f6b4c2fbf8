"""A job whose number of ranks changes: torchrun's own agent, started again each time.

A change is: SIGTERM to the ranks, which make a checkpoint and exit with 143 (:mod:`deeppart.elastic.told`); then the
agent is started with another number of them, here (:mod:`.launching`) or on the nodes of an allocation
(:mod:`.by_srun`).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

from deeppart._threads import start_thread
from deeppart.errors import LaunchError
from deeppart.model.records import StepKey
from deeppart.stopping.notices import Signals
from deeppart.storage.manifests import committed_steps

from .agent import Ended, name_code
from .events import Events
from .launching import Launcher, deaf, ended_by_signals
from .schedule import Wanted
from .told import EXIT_CODE

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is run.

    Attributes:
        checkpoints: the persistent directory: failures are counted anew when there is a newer step in it.
        most_failures: in a row, without a new step in between.
        loses: after a failure go on with one rank less, if that is allowed.
        grace_s: seconds that ranks have for a checkpoint, until they are killed.
    """

    checkpoints: Path
    most_failures: int = 3
    loses: bool = False
    grace_s: float = 120.0


class ElasticRun:
    """One job, to its end."""

    def __init__(self, options: Options, wanted: Wanted, least: int, launcher: Launcher, events: Events) -> None:
        self._options, self._wanted, self._least = options, wanted, least
        self._launcher, self._events = launcher, events
        self._asked = False
        self._lost = 0  # ranks, of those that are wanted
        self._failures = 0
        self._newest: StepKey | None = None

    def run(self, before: Signals | None = None) -> int:
        """Start ranks until they are done."""
        with ended_by_signals():
            try:
                if before is not None and before.received is not None:
                    return self._told(before.received)
                return self._run()
            except SignalException as told:  # while no ranks run
                return self._told(signal.Signals(told.sigval))

    def _told(self, number: signal.Signals) -> int:
        with deaf():  # others may follow
            self._events.tell("told", signal=number.name)
        return EXIT_CODE if number in (signal.SIGTERM, signal.SIGUSR1) else 128 + int(number)

    def _run(self) -> int:
        self._newest = self._newest_step()
        wanted = self._wanted.look(0.0)
        while True:
            ranks = self._ranks(wanted)
            ended = self._run_once(ranks, wanted)
            if ended.told is not None:
                return self._told(ended.told)
            if ended.code == 0:
                return 0
            newest = self._newest_step()
            self._events.tell(
                "ended", rank=ended.rank, node=ended.node, exit_code=ended.code, asked=self._asked,
                step=None if newest is None else newest.step,
            )  # fmt: skip
            if ended.code == EXIT_CODE and not self._asked:  # by somebody else, who wants the job to end
                return EXIT_CODE
            now = self._wanted.look(self._events.passed_s)
            if self._asked or now != wanted:
                self._lost = 0
            if not (self._asked and ended.code in (EXIT_CODE, -signal.SIGTERM)):
                self._count(ended, ranks, newest)
            wanted = now

    def _ranks(self, wanted: int) -> int:
        """How many there are to be, and can be."""
        ranks, room = max(self._least, wanted - self._lost), self._launcher.room()
        if room is None or room >= ranks:
            return ranks
        if room < self._least:
            raise LaunchError(
                "too few nodes are left",
                expected=f"room for {self._least} ranks (--min)",
                found=f"room for {room}, on {', '.join(self._launcher.nodes()) or 'no node'}",
                todo="look at what is said of them above; submit the job again: it goes on from the newest checkpoint",
            )
        return room

    def _run_once(self, ranks: int, wanted: int) -> Ended:
        """Run so many ranks until they end."""
        self._asked = False
        self._events.tell("start", ranks=ranks, nodes=self._launcher.nodes()[:ranks] or None)
        with self._watching(wanted):
            return self._launcher.run(ranks)

    @contextlib.contextmanager
    def _watching(self, wanted: int) -> Iterator[None]:
        """Meanwhile a thread looks whether another number of ranks is wanted, and tells them."""
        over = threading.Event()
        thread = start_thread(partial(self._watch, over, wanted), "elastic-run", self._tell_unwatched)
        try:
            yield
        finally:
            over.set()
            thread.join()  # bounded: it ends at its next look

    def _tell_unwatched(self, error: BaseException) -> None:
        self._events.tell("note", text=f"another number of ranks is not looked for until the next start: {error!r}")

    def _watch(self, over: threading.Event, wanted: int) -> None:
        until_s: float | None = None
        said = False
        while not over.wait(_LOOK_EVERY_S):
            now = self._wanted.look(self._events.passed_s)
            if self._wanted.refused is not None:
                self._events.tell("note", text=f"not used: {self._wanted.refused}")
                self._wanted.refused = None
            if until_s is None and now != wanted:
                self._asked = True  # before they can end by it
                self._asked = self._launcher.send(signal.SIGTERM)
                if self._asked:
                    self._events.tell("change", ranks=now)
                    until_s = time.monotonic() + self._options.grace_s
            elif until_s is not None and time.monotonic() > until_s:
                if not said:
                    left = f"ranks have not ended {self._options.grace_s:g} s after SIGTERM: they are killed"
                    self._events.tell("note", text=left)
                    said = True
                if self._launcher.send(signal.SIGKILL):
                    until_s = float("inf")

    def _count(self, ended: Ended, ranks: int, newest: StepKey | None) -> None:
        """A failure: of how many in a row?"""
        there = self._options.checkpoints
        self._failures = 1 if newest != self._newest else self._failures + 1
        self._newest = newest
        if self._options.loses and not self._asked:
            self._lost += 1
        if self._failures > self._options.most_failures:
            raise LaunchError(
                f"the ranks failed {self._failures} times in a row, without a new checkpoint",
                found=f"{ended.where} of {ranks}: {name_code(ended.code)}"
                if ended.rank is not None
                else f"{ended.where}: {name_code(ended.code)}",
                where=f"checkpoints in {there}",
                todo=f"look at what it printed; `deeppart ls {there}` shows the checkpoints"
                if there.is_dir()
                else "look at what it printed; --checkpoints DIR says where to look for progress",
            )

    def _newest_step(self) -> StepKey | None:
        if not self._options.checkpoints.is_dir():
            return None
        return max(committed_steps(self._options.checkpoints), default=None)
