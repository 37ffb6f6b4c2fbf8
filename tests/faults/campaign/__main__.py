"""``python -m tests.faults.campaign``: exit code 0 only if no byte was wrong, nothing hung and nothing was lost."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tests.faults.campaign import plan, records, report, special, stages, sweep
from tests.faults.campaign.cutting import Cutting
from tests.faults.campaign.jobs import Jobs
from tests.faults.campaign.judge import Problem
from tests.faults.campaign.runner import Play
from tests.mpi import launchers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; returns the exit code."""
    options = _parse(arguments)
    scenarios = _chosen(options)
    if options.list:
        print("\n".join(records.describe(each) for each in scenarios))
        return 0
    if reason := launchers.unavailable():
        print(reason, file=sys.stderr)
        return 2
    stages.check()
    campaign = Campaign(scenarios, options)
    began = time.monotonic()
    try:
        campaign.run()
        seconds = time.monotonic() - began
        if options.json:
            outcome = {"seconds": round(seconds, 1), "interrupted": campaign.interrupted, "failed": campaign.failed}
            print(json.dumps(campaign.tally.as_json() | outcome, indent=1))
        else:
            report.show(campaign.tally, seconds, Console(width=None if sys.stdout.isatty() else 190))
        if campaign.interrupted:
            print(f"interrupted while it played {' '.join(campaign.playing) or 'nothing'}", file=sys.stderr)
            return 130
    finally:
        campaign.end()
    return 1 if campaign.failed else 0


class Campaign:
    """Scenarios being played by a few workers at a time.

    Args:
        scenarios: in this order.
        options: of the command line.

    Attributes:
        tally, failed: what has been found.
        playing: the scenarios that are being played.
        interrupted: it was broken off; what is found from then on is a consequence of that.
    """

    def __init__(self, scenarios: list[records.Scenario], options: argparse.Namespace) -> None:
        self._options = options
        self._waiting: Iterator[records.Scenario] = iter(scenarios)
        self._ranks = max((life.world for each in scenarios for life in each.lives), default=1)
        self._lock = threading.Lock()
        self._over = self.interrupted = False
        self._jobs: list[Jobs] = []
        self.tally = report.Tally()
        self.failed: list[dict[str, object]] = []
        self.playing: list[str] = []
        self._directory: Path | None = None
        self._workers: list[threading.Thread] = []

    def run(self) -> None:
        """All of them, or until something is wrong, or the process is told to end."""
        memory = Path("/dev/shm")
        if self._options.data:
            self._options.data.mkdir(parents=True, exist_ok=True)
        where = self._options.data or (memory if memory.is_dir() else None)
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="deeppart-campaign-", dir=where))
            for _ in range(self._options.workers):
                self._workers.append(threading.Thread(target=self._work, args=(self._directory,)))
                self._workers[-1].start()
            for worker in self._workers:
                while worker.is_alive():  # a signal may reach another thread, and is handled when this one runs
                    worker.join(0.2)
        except KeyboardInterrupt:
            self._over = self.interrupted = True

    def end(self) -> None:
        """End what is still being played, and remove the data."""
        self._over = True
        if self.interrupted:
            for jobs in self._jobs:
                jobs.close()  # which ends what the workers wait for
        for worker in self._workers:
            worker.join()
        if self._directory is not None and not (self._options.data and self.failed):
            shutil.rmtree(self._directory, ignore_errors=True)

    def _work(self, directory: Path) -> None:
        jobs = self._new_jobs(directory, self._options.seed)
        seed = self._options.seed
        try:
            while (scenario := self._next()) is not None:
                if scenario.seed != seed:  # sets of names come in another order
                    jobs.close()
                    seed = scenario.seed
                    jobs = self._new_jobs(directory, seed)
                base = Path(tempfile.mkdtemp(prefix=scenario.name.replace(":", "-") + "-", dir=directory))
                play = self._play(scenario, base, jobs)
                self.playing.append(scenario.name)
                play.run()
                if self.interrupted:
                    break
                self.playing.remove(scenario.name)
                if play.problems:
                    self._failure(play, scenario, base)
                else:
                    shutil.rmtree(base)
                if self._options.verbose:
                    self._say("\n".join([f"scenario {scenario.name}", *play.log]))
        except BaseException:
            if self.interrupted:
                return
            self._over = True
            self.failed.append({"scenario": "", "problems": ["the campaign itself failed"]})
            raise
        finally:
            jobs.close()

    def _play(self, scenario: records.Scenario, base: Path, jobs: Jobs) -> Play | Cutting:
        if scenario.kind == special.POWER_KIND:
            return Cutting(scenario, self.tally)
        return Play(scenario, base, jobs, self.tally, self._options.break_library or "")

    def _new_jobs(self, directory: Path, seed: int) -> Jobs:
        jobs = Jobs(self._ranks, self._options.limit, Path(tempfile.mkdtemp(dir=directory)), seed)
        self._jobs.append(jobs)
        return jobs

    def _next(self) -> records.Scenario | None:
        with self._lock:
            if self._over or (self._options.faults and self.tally.faults >= self._options.faults):
                return None
            return next(self._waiting, None)

    def _failure(self, play: Play | Cutting, scenario: records.Scenario, base: Path) -> None:
        texts = [f"{problem.kind}: {problem.text}" for problem in play.problems]
        again = f"python -m tests.faults.campaign --repeat={scenario.name} --verbose{_needed(self._options)}"
        with self._lock:
            self.failed.append({"scenario": scenario.name, "problems": texts, "repeat": again})
            self._over = self._over or not self._options.keep_going
        lines = [records.describe(scenario), "what happened:", *play.log, "PROBLEMS:", *_unique(play.problems)]
        self._say("\n".join([*lines, f"again: {again}", *([f"data: {base}"] if self._options.data else []), ""]))
        if not self._options.data:
            shutil.rmtree(base, ignore_errors=True)

    def _say(self, text: str) -> None:
        with self._lock:
            print(text, file=sys.stderr, flush=True)


def _unique(problems: Sequence[Problem]) -> list[str]:
    return list(dict.fromkeys(f"  {problem.kind}: {problem.text}" for problem in problems))


def _needed(options: argparse.Namespace) -> str:
    """Options without which a scenario is another one."""
    defaults = _parse([])
    names = [name for name in ("ranks", "kills", "break_library") if getattr(options, name) != getattr(defaults, name)]
    return "".join(f" --{name.replace('_library', '')} {getattr(options, name)}" for name in names)


def _chosen(options: argparse.Namespace) -> list[records.Scenario]:
    if options.repeat:
        return [_named(each, options) for each in options.repeat]
    numbers = range(options.first, options.first + options.runs)
    if options.every:
        return sweep.every()[options.first :]
    kinds = set(options.only or special.KINDS) - set(options.without or ())
    wanted = [number for number in numbers if special.kind_of(options.seed, number) in kinds]
    return [plan.scenario(options.seed, number, options.ranks, options.kills) for number in wanted]


def _named(name: str, options: argparse.Namespace) -> records.Scenario:
    seed, number = map(int, name.split(":"))
    return sweep.every()[number] if seed == sweep.EVERY else plan.scenario(seed, number, options.ranks, options.kills)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="decides everything (default 1)")
    add("--runs", type=int, default=20, help="scenarios (default 20)")
    add("--first", type=int, default=0, help="number of the first one")
    add("--faults", type=int, default=0, help="stop after so many faults")
    add("--repeat", action="extend", nargs="+", metavar="SEED:NUMBER", help="exactly these scenarios")
    add("--every", action="store_true", help="instead: every storage operation of a small job, one after another")
    add("--only", nargs="+", choices=special.KINDS, help="of the scenarios drawn, those about this")
    add("--without", nargs="+", choices=special.KINDS, help="of the scenarios drawn, not those about this")
    add("--list", action="store_true", help="print the scenarios and do nothing")
    add("--keep-going", action="store_true", help="go on after a failure")
    add("--json", action="store_true", help="print the result as JSON")
    add("--verbose", action="store_true", help="print what happens in every scenario, to stderr")
    add("--workers", type=int, default=2, help="scenarios at a time (default 2)")
    add("--ranks", type=int, default=6, help="largest world (default 6)")
    add("--kills", type=float, default=0.4, help="share of scenarios with a SIGKILL (default 0.4)")
    add("--limit", type=float, default=60.0, help="seconds after which a life hangs (default 60)")
    add("--data", type=Path, help="keep the data of failed scenarios below this directory")
    add("--break", dest="break_library", choices=stages.BREAKS, help="break the library, to see that it is noticed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # of which shells let background processes ignore the second
        signal.signal(number, signal.default_int_handler)  # so that no job and no data is left behind
    sys.exit(main())
