"""Starts jobs under mpirun, bounds every wait for them, and plays scenarios life by life."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign import faults, judge, life, oracle
from tests.faults.campaign.files import Stamp, Stored, read_lineage, sound, take_stock
from tests.faults.campaign.judge import HANG, Outcome, Problem
from tests.faults.campaign.order import Order
from tests.faults.campaign.plan import LEVELS, Life, Scenario
from tests.faults.campaign.report import Fault, Tally
from tests.mpi import launch
from tests.mpi.launch import Job, start_ranks

#: A serving job is replaced after so many lives: every start that is refused costs it an MPI communicator.
_LIVES_PER_JOB = 300
_FOREVER_S = 86_400.0
#: Starting a job takes seconds on an idle machine.
_START_S = 90.0
_SINGLE = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}


class HangError(Exception):
    """A job ran past its limit, or ended in the middle; it has been stopped."""


class Server:
    """A job that plays lives without kills, started when it is first needed.

    Args:
        ranks: how many.
        limit_s: seconds that a life may take.
        env: variables to set.
        directory: for orders.
    """

    def __init__(self, ranks: int, limit_s: float, env: dict[str, str], directory: Path) -> None:
        self._ranks, self._limit_s, self._env, self._directory = ranks, limit_s, env, directory
        self._job: Job | None = None
        self._spool = Path()
        self._count = 0

    def play(self, order: Order) -> None:
        """Play one life.

        Raises:
            HangError: see there.
        """
        if self._count >= _LIVES_PER_JOB:
            self.close()
        if self._job is None:
            self._spool = Path(tempfile.mkdtemp(dir=self._directory))
            self._job = start_ranks(
                self._ranks, life.serve, self._spool, os.getpid(), timeout=_FOREVER_S, env=self._env
            )
            self._count = 0
            self._wait(lambda: all((self._spool / f"ready-{rank}").exists() for rank in range(self._ranks)), _START_S)
        records = [order.record_of(rank) for rank in range(order.life.world)]
        order.save(self._spool / f"order-{self._count}.json")
        self._count += 1
        self._wait(lambda: all(_ended(record) for record in records), self._limit_s)

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        assert self._job is not None
        try:
            self._job.wait_for(condition, limit_s)
        except AssertionError as error:
            self.close()
            raise HangError(_trimmed(str(error))) from error

    def close(self) -> None:
        """End the job."""
        job, self._job = self._job, None
        if job is not None:
            job.__exit__()
            shutil.rmtree(self._spool, ignore_errors=True)
        self._count = 0


class Jobs:
    """All jobs of one worker.

    Args:
        ranks: of the serving jobs.
        limit_s: seconds that a life may take.
        libfiu: the variables that put libfiu below the serving jobs, or None.
        directory: for small files.
    """

    def __init__(self, ranks: int, limit_s: float, libfiu: dict[str, str] | None, directory: Path) -> None:
        self._limit_s, self._directory = limit_s, directory
        self.libfiu = libfiu is not None
        more = libfiu or {}
        environments = {True: more, False: more | _SINGLE}
        self._servers = {threads: Server(ranks, limit_s, env, directory) for threads, env in environments.items()}

    def play(self, order: Order) -> None:
        """Play one life to its end, natural or not.

        Raises:
            HangError: it went on for too long.
        """
        if order.life.kill is None:
            server = self._servers[order.scenario.threads]
            server.play(order)
            if any(True for _ in Outcome(order).events("exception")):
                server.close()  # its ranks may be anywhere
            return
        self._play_alone(order)

    def _play_alone(self, order: Order) -> None:
        """A life that ends with a kill has a job of its own."""
        assert order.life.kill is not None
        path, linger_s = order.base / f"order-{order.number}.json", order.life.kill.linger_s
        order.save(path)
        env = {} if order.scenario.threads else _SINGLE
        patient = self._patient if linger_s else None
        limit_s = _START_S + self._limit_s
        records = [order.record_of(rank) for rank in range(order.life.world)]
        try:
            with start_ranks(order.life.world, life.play_alone, path, timeout=limit_s, env=env, mpiexec=patient) as job:
                if patient is not None:
                    job.wait_for(lambda: any(map(_struck, records)) or all(map(_ended, records)), limit_s)
                    if any(map(_struck, records)):
                        time.sleep(linger_s)
                        return  # leaving the block ends what is left of the job
                job.wait(expect_rc=None)
        except AssertionError as error:
            raise HangError(_trimmed(str(error))) from error

    @functools.cached_property
    def _patient(self) -> Path | None:
        """A launcher that lets the other ranks of a job go on when one has died; None where there is none."""
        launcher = launch.find_mpiexec()
        if launcher is None or not launch._is_hydra(launcher):
            return None
        script = self._directory / "patient-mpirun"
        script.write_text(f'#!/bin/sh\nexec "{launcher}" -disable-auto-cleanup "$@"\n')
        script.chmod(0o700)
        return script

    def close(self) -> None:
        """End all jobs."""
        for server in self._servers.values():
            server.close()


def _ended(record: Path) -> bool:
    return record.exists() and record.read_bytes().endswith(b'{"event": "end"}\n')


def _struck(record: Path) -> bool:
    return record.exists() and b'{"event": "killing"}' in record.read_bytes()


@dataclass(frozen=True, slots=True)
class Start:
    """What lay on storage when a life began.

    Attributes:
        files: the sound ones.
        lineage: of the persistent directory; "" for none, None for one that cannot be read.
        manifests: whether there were any, sound or not.
    """

    files: list[Stored]
    lineage: str | None
    manifests: bool

    @classmethod
    def of(cls, base: Path, damaged: dict[Path, Stamp]) -> Start:
        """As it is now."""
        stock = take_stock(base)
        manifests = any(file.kind == "manifest" for file in stock)
        return cls(sound(stock, damaged), read_lineage(base / "persistent"), manifests)


class Play:
    """One scenario being played.

    Args:
        scenario: what to do.
        base: an empty directory for its data.
        jobs: play lives.
        tally: counts.
        broken: how the library is to be broken, or "".
    """

    def __init__(self, scenario: Scenario, base: Path, jobs: Jobs, tally: Tally, broken: str = "") -> None:
        self._scenario, self._base, self._jobs, self._tally, self._broken = scenario, base, jobs, tally, broken
        self._damaged: dict[Path, Stamp] = {}
        self._hidden: set[Stamp] = set()
        self._started: dict[int, set[int]] = {}
        self._next_step = 1
        self._lineage_record = b""
        self._open: list[Fault] = []
        self._had: set[oracle.Attempt] = set()
        self.problems: list[Problem] = []
        self.log: list[str] = []

    def run(self) -> None:
        """All lives, until something is wrong."""
        (self._base / "nodes").mkdir(parents=True)
        (self._base / "persistent").mkdir()
        for number, each in enumerate(self._scenario.lives):
            self._harm(each)
            self._live(number, each)
            if self.problems:
                break
        self._tally.settle(self._open, self.problems)

    def _harm(self, each: Life) -> None:
        for fault in each.before:
            for applied in faults.apply(fault, self._base, self._damaged):
                self._note(applied.kind, applied.how, applied.detail)
                if applied.hidden is not None:
                    self._hidden.add(self._damaged[applied.hidden])

    def _note(self, kind: str, how: str, detail: str) -> None:
        self.log.append(f"{kind}, {how}: {detail}")
        self._open.append(self._tally.fault(kind, how))

    def _live(self, number: int, each: Life, try_number: int = 0) -> None:
        start = Start.of(self._base, self._damaged)
        began = time.monotonic()
        members = _members(self._scenario, number, each)
        order = Order(
            self._scenario, number, self._base, self._next_step, members, self._broken, try_number, self._jobs.libfiu
        )
        try:
            self._jobs.play(order)
        except HangError as error:
            self.problems += [
                Problem(HANG, f"life {number}: {error}"),
                *judge.check_ranks(Outcome(order), may_refuse=True),
            ]
            self.problems.append(Problem(HANG, "the last events of every rank:" + _tails(Outcome(order))))
            return
        outcome = Outcome(order)
        self._started.setdefault(number, set()).update(outcome.steps)
        self._next_step = max([self._next_step, *(step + 1 for step in outcome.steps)])
        self.log.append(f"{_summary(outcome)} ({time.monotonic() - began:.2f} s)")
        self.problems += judge.check_ranks(outcome, may_refuse=start.lineage is None)
        if start.lineage is None and outcome.session is None and not outcome.killed and not self.problems:
            self._mend_lineage(number)
            self._live(number, each, try_number + 1)
            return
        if start.lineage is None and outcome.session is not None:
            self.problems.append(Problem(judge.ERROR, f"life {number}: started although deeppart.json cannot be read"))
        self._judge_restores(outcome, start)
        self._count_faults(outcome)
        self._judge_end(outcome, start)

    def _mend_lineage(self, number: int) -> None:
        """As the message says; or the record is brought back from a copy."""
        path = self._base / "persistent" / "deeppart.json"
        path.unlink()
        if number % 2 and self._lineage_record:
            path.write_bytes(self._lineage_record)
        self.log.append("deeppart.json mended")

    def _judge_restores(self, outcome: Outcome, start: Start) -> None:
        each = outcome.life
        nodes = range(each.nodes if each.every["local"] else 0)
        reached = oracle.View(nodes, start.lineage or outcome.lineage)
        refused = [event for _, event in outcome.events("storage") if event["refused"]]
        at = [each.storage[event["fault"]] for event in refused if each.storage[event["fault"]].phase == "restore"]
        unreadable = {-1 if fault.root == "persistent" else fault.rank // each.node_size for fault in at}
        partly = oracle.View(nodes, reached.lineage, unreadable)
        for which, view in ((life.FAULTY, partly), (life.FIRST, reached)):
            bound = oracle.newest(oracle.recoverable(start.files, view))
            demand = start.manifests and -1 not in view.unreadable
            found = judge.check_restore(outcome, which, bound, self._started, demand)
            self.problems += found
            if which == life.FIRST and outcome.restores(which):
                self._resolve(outcome, which, found)
        again = outcome.restores(life.AGAIN)
        if again:
            done = [step for level in LEVELS for step in outcome.completed(level).done]
            bound = max(done, default=None) if not each.running else None
            self.problems += judge.check_restore(outcome, life.AGAIN, bound, self._started, manifests=False)

    def _resolve(self, outcome: Outcome, which: str, found: list[Problem]) -> None:
        """The faults since the last restore have come to this."""
        result = outcome.restores(which)[0]
        step = result["step"]
        back = len({had for _, had in self._had if step is None or had > step})
        self._tally.resolve(self._open, judge.levels_of(result["lines"]), step is not None, back)
        if not found:
            self._open = []

    def _count_faults(self, outcome: Outcome) -> None:
        each = outcome.life
        for rank, event in outcome.events("storage"):
            fault = each.storage[event["fault"]]
            self._tally.met(fault, event["met"][0] if event["refused"] else None)
            if event["refused"]:
                how = "from then on" if fault.lasting else "once"
                detail = f"operation {fault.number} ({event['met']}) of rank {rank}"
                self._note(f"{fault.error}: {fault.phase}, {fault.root}", how, detail)
                if fault.phase != "checkpoint":  # there was a restore after it in the same life
                    self._resolve_now(outcome, fault.phase)
        for _, event in outcome.events("libc"):
            if event["refused"]:
                self._note(f"libfiu: {event['point']}", "once" if event["refused"] == 1 else "repeatedly", "")
            else:
                self._tally.missed += 1
        for _, event in outcome.events("running"):
            kind = each.running[event["fault"]].kind
            names = {"node": "node directory removed", "away": "persistent_dir away", "lock": "lock file removed"}
            self._note(names[kind], "while running", "")
        if outcome.killed and each.kill is not None:
            where = each.kill.stage or f"random moment, {each.kill.phase}"
            self._note(f"kill: {where}", {"rank": "1 rank", "node": "a node"}.get(each.kill.scope, "all"), "")
        elif each.kill is not None:
            self._tally.missed += 1

    def _resolve_now(self, outcome: Outcome, phase: str) -> None:
        fault = self._open.pop()
        which = life.FAULTY if phase == "restore" else life.FIRST
        results = outcome.restores(which)
        if results:
            step = results[0]["step"]
            back = len({had for _, had in self._had if step is None or had > step})
            self._tally.resolve([fault], judge.levels_of(results[0]["lines"]), step is not None, back)

    def _judge_end(self, outcome: Outcome, start: Start) -> None:
        each = outcome.life
        if (self._base / "away").exists() and not self.problems:  # killed while it was away
            (self._base / "away").rename(self._base / "persistent")
        stock = take_stock(self._base)
        after = sound(stock, self._damaged)
        seen = {path: stamp for path, stamp in self._damaged.items() if stamp not in self._hidden}
        look_sound = sound(stock, seen)
        lineage = read_lineage(self._base / "persistent")
        if lineage:
            self._lineage_record = (self._base / "persistent" / "deeppart.json").read_bytes()
        if outcome.session is not None and not self.problems:
            nodes = range(each.nodes if each.every["local"] else 0)
            self.problems += judge.check_kept(outcome, after)
            self.problems += judge.check_persistent(outcome, start.files, after)
            self.problems += judge.check_healed(outcome, after, look_sound, nodes)
            self.problems += judge.check_progress(outcome, start.files, after, nodes)
        self._had = oracle.recoverable(after, oracle.View(range(100), lineage or ""))


def _trimmed(text: str) -> str:
    """The stacks of a job without the frames that are always there."""
    dull = (
        "runpy",
        "mpi4py/",
        "rank_main.py",
        "threading.py",
        "=====",
        "=   ",
        "YOUR APPLICATION",
        "Please see",
        "This typic",
    )
    return "\n".join(line for line in text.splitlines() if line.strip() and not any(word in line for word in dull))


def _tails(outcome: Outcome) -> str:
    """The last events of every rank, one a line."""
    lines = [f"rank {rank}: {str(event)[:300]}" for rank, record in enumerate(outcome.records) for event in record[-6:]]
    return "".join(f"\n      {line}" for line in lines)


def _members(scenario: Scenario, number: int, each: Life) -> tuple[int, ...]:
    """Which ranks of a serving job play a life: others than last time, so that nothing can hide in a process."""
    most = max(life.world for life in scenario.lives if life.kill is None)
    return tuple((rank + number) % most for rank in range(each.world)) if each.kill is None else ()


def _summary(outcome: Outcome) -> str:
    restored = [(event["which"], event["step"]) for event in outcome.restores(life.FIRST)[:1]]
    restored = [(event["which"], event["step"]) for event in outcome.restores(life.FAULTY)[:1]] + restored
    done = {level: outcome.completed(level) for level in LEVELS if outcome.life.every[level]}
    levels = "; ".join(
        f"{level} done {list(each.done)}" + (f" in doubt {list(each.doubtful)}" if each.doubtful else "")
        for level, each in done.items()
    )
    killed = ", killed" if outcome.killed else ""
    refused = next((f", start refused: {event['type']}" for _, event in outcome.events("refused")), "")
    return f"life {outcome.order.number}: restored {restored}, began {outcome.steps}, {levels}{killed}{refused}"
