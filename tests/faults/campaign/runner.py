"""Plays scenarios life by life: harms what lies on storage, has each life played, and has it judged."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign import faults, judge, life, oracle
from tests.faults.campaign.files import Stamp, Stored, read_lineage, sound, stamp_of, take_stock
from tests.faults.campaign.jobs import HangError, Jobs, end_process
from tests.faults.campaign.judge import HANG, Outcome, Problem
from tests.faults.campaign.order import Order
from tests.faults.campaign.records import LEVELS, Incident, Kill, Life, Scenario
from tests.faults.campaign.report import Row, Tally

#: A rank that was left behind has so long to end, when it has been woken.
_ZOMBIE_S = 15.0
_RUNNING = {
    "node": "node directory removed",
    "away": "persistent_dir away",
    "lock": "lock file removed",
    "clock": "clock set",
    "wake": "a rank that was left behind goes on",
}
_INCIDENTS = {
    "stop": "SIGSTOP for longer than the timeout, SIGCONT",
    "zombie": "SIGSTOP, left behind",
    "SIGTERM": "SIGTERM",
    "SIGINT": "SIGINT",
    "SIGTERM raised": "SIGTERM, a handler raises",
    "SIGINT raised": "SIGINT, a handler raises",
    "change": "a part changes after it was checked",
}


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
    def of(cls, base: Path, damaged: dict[Path, Stamp], swapped: Collection[Stamp]) -> Start:
        """As it is now."""
        stock = take_stock(base)
        manifests = any(file.kind == "manifest" for file in stock)
        return cls(sound(stock, damaged, swapped), read_lineage(base / "persistent"), manifests)


class Play:
    """One scenario being played.

    Args:
        scenario: what to do.
        base: an empty directory for its data.
        jobs: play lives.
        tally: counts.
        broken: how the library is to be broken, or "".

    Attributes:
        problems: what must not have happened.
        harm: what was done to files.
        log: what happened, readable.
    """

    def __init__(self, scenario: Scenario, base: Path, jobs: Jobs, tally: Tally, broken: str = "") -> None:
        self._scenario, self._base, self._jobs, self._tally, self._broken = scenario, base, jobs, tally, broken
        self._damaged: dict[Path, Stamp] = {}
        self._hidden: set[Stamp] = set()
        self._swapped: set[Stamp] = set()
        self._started: dict[int, set[int]] = {}
        self._next_step = 1
        self._open: list[Row] = []
        self._had: set[oracle.Attempt] = set()
        self._stopped: tuple[int, ...] = ()
        self.problems: list[Problem] = []
        self.harm: list[faults.Harm] = []
        self.log: list[str] = []

    def run(self) -> None:
        """All lives, until something is wrong."""
        (self._base / "nodes").mkdir(parents=True)
        (self._base / "persistent").mkdir()
        try:
            for number, each in enumerate(self._scenario.lives):
                for fault in each.before:
                    self._harm(faults.choose(fault, self._base))
                self._live(number, each)
                if self.problems:
                    break
        finally:
            for pid in self._stopped:
                end_process(pid, 0.0)
        self._tally.settle(self._open, self.problems)

    def _harm(self, harm: list[faults.Harm]) -> None:
        applied = faults.perform(harm, self._base, self._damaged)
        for each in applied:
            self._note(each.harm.kind, each.harm.how, each.harm.text)
            self.harm.append(each.harm)
            if each.hidden is not None:
                self._hidden.add(self._damaged[each.hidden])
        swaps = [self._base / each.harm.path for each in applied if each.harm.how == "swap"]
        swapped = {self._damaged[path] for path in swaps if path in self._damaged} | self._swapped
        # What one was given may have been harmed by then.
        harmed = {stamp[1:] for stamp in self._damaged.values() if stamp not in swapped}
        self._swapped = {stamp for stamp in swapped if stamp[1:] not in harmed}

    def _note(self, kind: str, how: str, detail: str) -> None:
        self.log.append(f"{kind}, {how}: {detail}")
        self._open.append(self._tally.fault(kind, how))

    def _live(self, number: int, each: Life) -> None:
        start = Start.of(self._base, self._damaged, self._swapped)
        began = time.monotonic()
        members = _members(self._scenario, number, each)
        order = Order(self._scenario, number, self._base, self._next_step, members, self._broken, self._stopped)
        try:
            self._stopped += self._jobs.play(order)
        except HangError as error:
            self.problems.append(Problem(HANG, f"life {number}: {error}"))
            self.problems += judge.check_ranks(Outcome(order), may_refuse=True)
            self.problems.append(Problem(HANG, "the last events of every rank:" + _tails(Outcome(order))))
            return
        outcome = Outcome(order)
        self._started.setdefault(number, set()).update(outcome.steps)
        self._next_step = max([self._next_step, *(step + 1 for step in outcome.steps)])
        self.log.append(f"{_summary(outcome)} ({time.monotonic() - began:.2f} s)")
        self.problems += judge.check_ranks(outcome, may_refuse=False)
        self._see_off(outcome)
        self._judge_restores(outcome, start)
        self._count_faults(outcome)
        self._judge_end(outcome, start)

    def _see_off(self, outcome: Outcome) -> None:
        """Processes of earlier lives that were woken in this one come to their end."""
        woken = {outcome.life.running[event["fault"]].kind for _, event in outcome.events("running")}
        if "wake" in woken:
            for pid in self._stopped:
                if end_process(pid, _ZOMBIE_S):
                    text = f"life {outcome.order.number}: a rank of an earlier life was woken and did not end"
                    self.problems.append(Problem(HANG, text))
            self._stopped = ()

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
            hidden = bool(oracle.recoverable(start.files, reached))
            something = hidden or (start.manifests and -1 not in view.unreadable)
            found = judge.check_restore(outcome, which, bound, self._started, something)
            self.problems += found
            if which == life.FIRST and outcome.restores(which):
                self._resolve(outcome, which, self._open)
                self._open = self._open if found else []
        if each.compares:
            sound_steps = {step for session, step in oracle.recoverable(start.files, reached)}
            self.problems += judge.check_every(outcome, sound_steps, self._started)
        self.problems += judge.check_late(outcome)
        again = outcome.restores(life.AGAIN)
        if again:
            done = [step for level in LEVELS for step in outcome.completed(level).done]
            bound = max(done, default=None) if not each.running else None
            self.problems += judge.check_restore(outcome, life.AGAIN, bound, self._started, something=False)

    def _resolve(self, outcome: Outcome, which: str, rows: list[Row]) -> None:
        """These faults have come to this, if the ranks got as far as the restore."""
        for result in outcome.restores(which)[:1]:
            step = result["step"]
            back = len({had for _, had in self._had if step is None or had > step})
            self._tally.resolve(rows, judge.levels_of(result["lines"]), step is not None, back)

    def _count_faults(self, outcome: Outcome) -> None:
        each = outcome.life
        for rank, event in outcome.events("storage"):
            fault = each.storage[event["fault"]]
            self._tally.missed += not event["refused"]
            if event["refused"]:
                how = "from then on" if fault.lasting else "once"
                detail = f"operation {fault.number} ({event['met']}) of rank {rank}"
                self._note(f"{fault.error}: {fault.phase}, {fault.root}", how, detail)
                if fault.phase != "checkpoint":  # there was a restore after it in the same life
                    self._resolve(outcome, life.FAULTY if fault.phase == "restore" else life.FIRST, [self._open.pop()])
        for rank, event in outcome.events("running"):
            running = each.running[event["fault"]]
            self._note(_RUNNING[running.kind], "while running", f"rank {rank}, before checkpoint {running.at}")
        if each.kill is not None:
            self._count_kill(outcome, each.kill)
        if each.incident is not None:
            self._count_incident(outcome, each.incident)

    def _count_kill(self, outcome: Outcome, kill: Kill) -> None:
        if not outcome.killed:
            self._tally.missed += 1
            return
        where = kill.stage or f"random moment, {kill.phase}"
        how = {"rank": "1 rank", "node": "a node"}.get(kill.scope, "all")
        self._note(f"kill: {where}", how, f"rank {kill.victim}")

    def _count_incident(self, outcome: Outcome, incident: Incident) -> None:
        names = ("stopping", "signalled", "killing", "changing")
        if not any(True for name in names for _ in outcome.events(name)):
            self._tally.missed += 1
            return
        how = incident.stage or f"random moment, {incident.phase}"
        self._note(_INCIDENTS[incident.kind], how, f"rank {incident.victim}")

    def _judge_end(self, outcome: Outcome, start: Start) -> None:
        each = outcome.life
        if (self._base / "away").exists() and not self.problems:  # killed while it was away
            (self._base / "away").rename(self._base / "persistent")
        stock = take_stock(self._base)
        written = sound(stock, self._damaged, self._swapped)
        changed = self._take_in_changes(outcome)
        before = [each for each in start.files if each.path not in changed]  # with what was left, it may be too much
        after = sound(stock, self._damaged, self._swapped)
        seen = {path: stamp for path, stamp in self._damaged.items() if stamp not in self._hidden}
        look_sound = sound(stock, seen, self._swapped)
        lineage = read_lineage(self._base / "persistent")
        if outcome.session is not None and not self.problems:
            nodes = range(each.nodes if each.every["local"] else 0)
            self.problems += judge.check_kept(outcome, written)
            self.problems += judge.check_persistent(outcome, start.files, after)
            self.problems += judge.check_healed(outcome, after, look_sound, nodes)
            self.problems += judge.check_progress(outcome, before, after, nodes)
        self._had = oracle.recoverable(after, oracle.View(range(100), lineage or ""))

    def _take_in_changes(self, outcome: Outcome) -> set[Path]:
        """Parts that were changed in this life; what the library has not written anew is damaged from here on."""
        changed = set()
        for _, event in outcome.events("changing"):
            path, stamp = Path(event["path"]), tuple(event["stamp"])
            changed.add(path)
            if path.exists() and stamp_of(path) == stamp:
                self._damaged[path] = stamp
                self._hidden.add(stamp)
        return changed


def _tails(outcome: Outcome) -> str:
    """The last events of every rank, one a line."""
    lines = [f"rank {rank}: {str(event)[:300]}" for rank, record in enumerate(outcome.records) for event in record[-6:]]
    return "".join(f"\n      {line}" for line in lines)


def _members(scenario: Scenario, number: int, each: Life) -> tuple[int, ...]:
    """Which ranks of a serving job play a life: others than last time, so that nothing can hide in a process."""
    most = max((life.world for life in scenario.lives if not life.alone), default=0)
    return tuple((rank + number) % most for rank in range(each.world)) if not each.alone else ()


def _summary(outcome: Outcome) -> str:
    first = [event for which in (life.FAULTY, life.FIRST) for event in outcome.restores(which)[:1]]
    restored = [(event["which"], event["step"]) for event in first]
    done = {level: outcome.completed(level) for level in LEVELS if outcome.life.every[level]}
    levels = "; ".join(
        f"{level} done {list(each.done)}" + (f" in doubt {list(each.doubtful)}" if each.doubtful else "")
        for level, each in done.items()
    )
    killed = ", killed" if outcome.killed else ""
    refused = next((f", start refused: {event['type']}" for _, event in outcome.events("refused")), "")
    return f"life {outcome.order.number}: restored {restored}, began {outcome.steps}, {levels}{killed}{refused}"
