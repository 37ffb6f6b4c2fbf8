"""The driver of ``deeppart elastic-run``: restarts a torchrun agent whenever the number of ranks changes.

To change it, the ranks get SIGTERM, save a checkpoint and exit with 143 (:mod:`.stop_request`). Then the launcher
starts the new number, on this host (:mod:`.launching`) or on the nodes of a Slurm allocation (:mod:`.srun`).
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

from .launching import Launcher, RunResult, describe_exit_code, raise_on_signals, signals_ignored
from .stop_request import EXIT_CODE

_POLL_S = 0.1
#: The limit on digits keeps int() cheap.
_DIGITS = re.compile(r"[0-9]{1,9}")
_MAX_FILE_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a run."""

    checkpoints: Path  # the persistent directory; a new step in it resets the count of failures
    max_failures: int = 3  # in a row without a new step
    drop_failed: bool = False  # restart with one rank less after a failure, down to the minimum
    grace_s: float = 120.0  # from SIGTERM to SIGKILL


class ElasticRun:
    """Runs one job until it ends."""

    def __init__(
        self, options: Options, wanted: WantedRanks, min_ranks: int, launcher: Launcher, events: Events
    ) -> None:
        self._options, self._wanted, self._min_ranks = options, wanted, min_ranks
        self._launcher, self._events = launcher, events
        self._resizing = False  # the current ranks were told to stop because another number is wanted
        self._lost_ranks = 0
        self._failures = 0
        self._newest: int | None = None

    def run(self, earlier_signal: Callable[[], signal.Signals | None] = lambda: None) -> int:
        """Run to the end and return the exit code; ``earlier_signal`` returns a signal received before the call."""
        with raise_on_signals():
            try:
                if (number := earlier_signal()) is not None:
                    return self._end_by_signal(number)
                return self._run()
            except SignalException as error:  # between two runs of the ranks
                return self._end_by_signal(signal.Signals(error.sigval))

    def _end_by_signal(self, number: signal.Signals) -> int:
        with signals_ignored():
            self._events.emit("told", signal=number.name)
        return EXIT_CODE if number in (signal.SIGTERM, signal.SIGUSR1) else 128 + int(number)

    def _run(self) -> int:
        self._newest = self._newest_step()
        wanted = self._wanted.update(0.0)
        while True:
            ranks = self._available_ranks(wanted)
            self._resizing = False
            self._events.emit("start", ranks=ranks, nodes=self._launcher.nodes()[:ranks] or None)
            with self._watching(wanted):
                result = self._launcher.run(ranks)
            if result.by_signal is not None:
                return self._end_by_signal(result.by_signal)
            if result.code == 0:
                return 0
            newest = self._newest_step()
            self._events.emit(
                "ended", rank=result.rank, node=result.node, exit_code=result.code, asked=self._resizing,
                step=newest,
            )  # fmt: skip
            if result.code == EXIT_CODE and not self._resizing:  # another process requested the job's end
                return EXIT_CODE
            now = self._wanted.update(self._events.elapsed_s)
            if self._resizing or now != wanted:
                self._lost_ranks = 0
            if not (self._resizing and result.code in (EXIT_CODE, -signal.SIGTERM)):
                self._record_failure(result, ranks, newest)
            wanted = now

    def _available_ranks(self, wanted: int) -> int:
        ranks, capacity = max(self._min_ranks, wanted - self._lost_ranks), self._launcher.capacity()
        if capacity is None or capacity >= ranks:
            return ranks
        if capacity < self._min_ranks:
            raise LaunchError(
                "too few nodes are left",
                expected=f"room for {self._min_ranks} ranks (--min)",
                found=f"room for {capacity}, on {', '.join(self._launcher.nodes()) or 'no node'}",
                todo="see the messages about nodes above; submit the job again to continue from the newest checkpoint",
            )
        return capacity

    @contextlib.contextmanager
    def _watching(self, wanted: int) -> Iterator[None]:
        """Stop the ranks from a thread once another number is wanted."""
        done = threading.Event()
        thread = start_thread(partial(self._watch, done, wanted), "elastic-run", self._report_watch_failure)
        try:
            yield
        finally:
            done.set()
            thread.join()  # bounded by the polling interval

    def _report_watch_failure(self, error: BaseException) -> None:
        self._events.emit("note", text=f"the number of ranks is not checked again until the next start: {error!r}")

    def _watch(self, done: threading.Event, wanted: int) -> None:
        kill_at_s: float | None = None
        reported = False
        while not done.wait(_POLL_S):
            now = self._wanted.update(self._events.elapsed_s)
            if self._wanted.refused is not None:
                self._events.emit("note", text=f"not used: {self._wanted.refused}")
                self._wanted.refused = None
            if kill_at_s is None and now != wanted:
                self._resizing = True  # set before the signal can end the ranks
                self._resizing = self._launcher.send(signal.SIGTERM)
                if self._resizing:
                    self._events.emit("change", ranks=now)
                    kill_at_s = time.monotonic() + self._options.grace_s
            elif kill_at_s is not None and time.monotonic() > kill_at_s:
                if not reported:
                    late = f"killing ranks that have not ended {self._options.grace_s:g} s after SIGTERM"
                    self._events.emit("note", text=late)
                    reported = True
                if self._launcher.send(signal.SIGKILL):
                    kill_at_s = float("inf")

    def _record_failure(self, result: RunResult, ranks: int, newest: int | None) -> None:
        directory = self._options.checkpoints
        self._failures = 1 if newest != self._newest else self._failures + 1
        self._newest = newest
        if self._options.drop_failed and not self._resizing:
            self._lost_ranks += 1
        if self._failures > self._options.max_failures:
            of_ranks = f" of {ranks}" if result.rank is not None else ""
            raise LaunchError(
                f"the ranks failed {self._failures} times in a row, without a new checkpoint",
                found=f"{result.where}{of_ranks}: {describe_exit_code(result.code)}",
                where=f"checkpoints in {directory}",
                todo=f"read its output; `deeppart ls {directory}` lists the checkpoints"
                if directory.is_dir()
                else "read its output; name the directory of checkpoints with --checkpoints DIR",
            )

    def _newest_step(self) -> int | None:
        if not self._options.checkpoints.is_dir():
            return None
        return max(Step.committed(self._options.checkpoints), default=None)


# --- the wanted number of ranks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankRange:
    """Allowed numbers of ranks, both ends included."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ConfigError(
                "invalid range of ranks", expected="1 <= MIN <= MAX", found=f"--min {self.minimum} --max {self.maximum}"
            )

    def __contains__(self, ranks: int) -> bool:
        return self.minimum <= ranks <= self.maximum

    def checked(self, ranks: int, where: str) -> int:
        """Return ``ranks``, or raise ConfigError if it is out of range."""
        if ranks not in self:
            raise ConfigError(
                "a number of ranks is out of range",
                expected=f"{self.minimum} to {self.maximum}",
                found=str(ranks),
                where=where,
                todo="change it, or --min and --max",
            )
        return ranks


class WantedRanks:
    """The number of ranks wanted now: the most recent value of the schedule or the file."""

    def __init__(self, allowed: RankRange, schedule: Sequence[tuple[float, int]], file: Path | None) -> None:
        self._allowed, self._schedule, self._file = allowed, list(schedule), file
        self._text = ""
        if file is not None and self._is_regular(file) is False:
            raise ConfigError(
                "the file with the number of ranks is not a regular file", where=str(file), todo="name another one"
            )
        self.now = allowed.maximum
        #: Invalid content of the file that has not been reported yet.
        self.refused: str | None = None
        self.update(0.0)

    def update(self, elapsed_s: float) -> int:
        """Read the schedule and the file, and return the wanted number."""
        while self._schedule and self._schedule[0][0] <= elapsed_s:
            self.now = self._schedule.pop(0)[1]
        text = self._read()
        if text != self._text:
            self._text = text
            if _DIGITS.fullmatch(text) and int(text) in self._allowed:
                self.now = int(text)
            elif text:
                self.refused = (
                    f"{text[:40]!r} in {self._file}: not a number in {self._allowed.minimum} to {self._allowed.maximum}"
                )
        return self.now

    @staticmethod
    def _is_regular(file: Path) -> bool | None:
        """None if the file does not exist or cannot be examined."""
        try:
            return stat.S_ISREG(file.stat().st_mode)
        except OSError:
            return None

    def _read(self) -> str:
        """The content of the file; the previous one if it cannot be read or is being rewritten."""
        if self._file is None:
            return self._text
        try:
            if not self._is_regular(self._file):  # opening a pipe would block
                return self._text
            with self._file.open("rb") as file:
                return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace").strip() or self._text
        except OSError:
            return self._text


# --- events -----------------------------------------------------------------------------------------------------------


class Events:
    """Reports events to the terminal, a log file and a script. Thread-safe."""

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
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._began

    def emit(self, event: str, **values: Any) -> None:
        """Report an event; values that are None are left out."""
        elapsed_s = self.elapsed_s
        known = {name: value for name, value in values.items() if value is not None}
        if self._say is not None:
            self._say(f"{elapsed_s:.1f} s: {event} {_describe(known)}".rstrip())
        line = json.dumps(
            {"time": timestamp(time.time()), "passed_s": round(elapsed_s, 3), "event": event, **known}
        )  # fmt: skip
        if self._print_json is not None:
            self._print_json(line)
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:  # a full disk must not end the job
                log, self._log = self._log, None
                self.emit("note", text=f"stopped writing {log}: {error.strerror}")


def _describe(values: dict[str, Any]) -> str:
    """``rank 0, asked True, step 120: exit code 143 (stop requested)``; errors are printed elsewhere."""
    shown = {name: value for name, value in values.items() if name not in ("exit_code", "error")}
    words = []
    for name, value in shown.items():
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        words.append(text if name == "text" else f"{name} {text}")
    described = ", ".join(words)
    if "exit_code" not in values:
        return described
    code = describe_exit_code(values["exit_code"])
    return f"{described}: {code}" if described else code
