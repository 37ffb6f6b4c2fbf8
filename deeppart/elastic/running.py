"""A job whose number of ranks changes: torchrun's own agent, started again each time.

A change is: SIGTERM to the ranks, which make a checkpoint and exit with 143 (:mod:`.stop_request`); then the agent is
started with another number of them, here (:mod:`.launching`) or on the nodes of an allocation (:mod:`.by_srun`).
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException

from deeppart._threads import start_thread
from deeppart._times import timestamp
from deeppart.errors import ConfigError, LaunchError
from deeppart.extension import Step

from .launching import Launcher, RunResult, ended_by_signals, name_code, signals_ignored
from .stop_request import EXIT_CODE

_LOOK_EVERY_S = 0.1
#: More digits are no number of ranks.
_DIGITS = re.compile(r"[0-9]{1,9}")
#: More of the file is not looked at.
_MOST_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is run."""

    checkpoints: Path  # the persistent directory: failures are counted anew when there is a newer step in it
    most_failures: int = 3  # in a row, without a new step in between
    loses: bool = False  # after a failure go on with one rank less, if that is allowed
    grace_s: float = 120.0  # that ranks have for a checkpoint, until they are killed


class ElasticRun:
    """One job, to its end."""

    def __init__(self, options: Options, wanted: WantedRanks, least: int, launcher: Launcher, events: Events) -> None:
        self._options, self._wanted, self._least = options, wanted, least
        self._launcher, self._events = launcher, events
        self._asked = False
        self._lost = 0  # ranks, of those that are wanted
        self._failures = 0
        self._newest: int | None = None

    def run(self, before: Callable[[], signal.Signals | None] = lambda: None) -> int:
        """Start ranks until they are done, unless ``before`` gives a signal that has come already."""
        with ended_by_signals():
            try:
                if (number := before()) is not None:
                    return self._told(number)
                return self._run()
            except SignalException as told:  # while no ranks run
                return self._told(signal.Signals(told.sigval))

    def _told(self, number: signal.Signals) -> int:
        with signals_ignored():  # others may follow
            self._events.tell("told", signal=number.name)
        return EXIT_CODE if number in (signal.SIGTERM, signal.SIGUSR1) else 128 + int(number)

    def _run(self) -> int:
        self._newest = self._newest_step()
        wanted = self._wanted.look(0.0)
        while True:
            ranks = self._ranks(wanted)
            ended = self._run_once(ranks, wanted)
            if ended.by_signal is not None:
                return self._told(ended.by_signal)
            if ended.code == 0:
                return 0
            newest = self._newest_step()
            self._events.tell(
                "ended", rank=ended.rank, node=ended.node, exit_code=ended.code, asked=self._asked,
                step=newest,
            )  # fmt: skip
            if ended.code == EXIT_CODE and not self._asked:  # by another process, which wants the job to end
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

    def _run_once(self, ranks: int, wanted: int) -> RunResult:
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

    def _count(self, ended: RunResult, ranks: int, newest: int | None) -> None:
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

    def _newest_step(self) -> int | None:
        if not self._options.checkpoints.is_dir():
            return None
        return max(Step.committed(self._options.checkpoints), default=None)


# --- how many ranks are wanted ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankRange:
    """Numbers of ranks that are allowed."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                "there is no such number of ranks",
                expected="1 <= MIN <= MAX",
                found=f"--min {self.least} --max {self.most}",
            )

    def checked(self, ranks: int, where: str) -> int:
        """The number, if it is in the range."""
        if not self.least <= ranks <= self.most:
            raise ConfigError(
                "a number of ranks is out of range",
                expected=f"{self.least} to {self.most}",
                found=str(ranks),
                where=where,
                todo="change it, or --min and --max",
            )
        return ranks


class WantedRanks:
    """The number of ranks that is wanted now: what was said last, by the schedule or in the file."""

    def __init__(self, allowed: RankRange, schedule: Sequence[tuple[float, int]], file: Path | None) -> None:
        self._allowed, self._schedule, self._file = allowed, list(schedule), file
        self._text = ""
        if file is not None and self._is_ordinary(file) is False:
            raise ConfigError(
                "the number of ranks is to be in an ordinary file", where=str(file), todo="name another one"
            )
        self.now = allowed.most
        #: Problems of the file that have not been reported.
        self.refused: str | None = None
        self.look(0.0)

    def look(self, passed_s: float) -> int:
        """Look at both."""
        while self._schedule and self._schedule[0][0] <= passed_s:
            self.now = self._schedule.pop(0)[1]
        text = self._read()
        if text != self._text:
            self._text = text
            if _DIGITS.fullmatch(text) and self._allowed.least <= int(text) <= self._allowed.most:
                self.now = int(text)
            elif text:
                self.refused = (
                    f"{text[:40]!r} in {self._file}: not a number in {self._allowed.least} to {self._allowed.most}"
                )
        return self.now

    @staticmethod
    def _is_ordinary(file: Path) -> bool | None:
        """None if it does not exist, or cannot be examined."""
        try:
            return stat.S_ISREG(file.stat().st_mode)
        except OSError:
            return None

    def _read(self) -> str:
        """The text of the file; as it was before if it cannot be read, or is just being written."""
        if self._file is None:
            return self._text
        try:
            if not self._is_ordinary(self._file):  # reading a pipe would wait for its writer
                return self._text
            with self._file.open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip() or self._text
        except OSError:
            return self._text


# --- what has happened ------------------------------------------------------------------------------------------------


class Events:
    """Reports each event to the terminal, a log and a script. May be used by several threads."""

    def __init__(
        self,
        say: Callable[[str], object] | None = None,
        log: Path | None = None,
        print_json: Callable[[str], object] | None = None,
    ) -> None:
        self._say, self._log, self._print_json = say, log, print_json
        self._began = time.monotonic()
        if log is not None:
            log.open("a").close()

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, event: str, **values: Any) -> None:
        """Something has happened."""
        passed_s = self.passed_s
        known = {name: value for name, value in values.items() if value is not None}
        if self._say is not None:
            self._say(f"{passed_s:.1f} s: {event} {_words(known)}".rstrip())
        line = json.dumps(
            {
                "time": timestamp(time.time()),
                "passed_s": round(passed_s, 3),
                "event": event,
                **known,
            }
        )
        if self._print_json is not None:
            self._print_json(line)
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:  # the job goes on
                log, self._log = self._log, None
                self.tell("note", text=f"{log} is not written any more: {error.strerror}")


def _words(values: dict[str, Any]) -> str:
    """``rank 0, asked True, step 120: exit code 143 (told to end)``; errors are told elsewhere."""
    shown = {name: value for name, value in values.items() if name not in ("exit_code", "error")}
    words = ", ".join(str(value) if name == "text" else f"{name} {_word(value)}" for name, value in shown.items())
    if "exit_code" not in values:
        return words
    return f"{words}: {name_code(values['exit_code'])}" if words else name_code(values["exit_code"])


def _word(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
