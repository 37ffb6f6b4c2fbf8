"""What came of a life: the ranks' records, read and compared with what the oracle demands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.faults.campaign import oracle
from tests.faults.campaign.files import Stored
from tests.faults.campaign.order import Order
from tests.faults.campaign.records import HANG as LATE
from tests.faults.campaign.records import LEVELS, StorageFault

_SHARE = re.compile(r"(\d+) of \d+ parts? (local|partner|rebuilt from parity|persistent)")

#: What a rank may be told when something has happened to another one.
_TOLD = ("CommError", "PeerTimeoutError", "RemoteRankError", "CheckpointError")
#: A life in which ranks wait for one that is gone may take so many of the library's timeouts.
_TIMEOUTS = 12

WRONG, LOST, ANEW, ERROR, HANG, SPLIT = "wrong bytes", "too much lost", "began anew", "error", "hang", "ranks differ"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must not happen.

    Attributes:
        kind: one of the constants above.
        text: what was expected and what was found.
        nbytes: wrong bytes.
    """

    kind: str
    text: str
    nbytes: int = 0


class Outcome:
    """What the ranks have written down in one life.

    Args:
        order: what they were told.
    """

    def __init__(self, order: Order) -> None:
        self.order, self.life = order, order.life
        self.records = [_read(order.record_of(rank)) for rank in range(self.life.world)]

    def events(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """(rank, event) of a name, rank by rank."""
        for rank, record in enumerate(self.records):
            for event in record:
                if event["event"] == name:
                    yield rank, event

    @cached_property
    def killed(self) -> bool:
        """Whether the kill has struck."""
        return any(True for _ in self.events("killing"))

    @cached_property
    def disturbed(self) -> bool:
        """Whether something has happened to a process, or storage has kept one waiting."""
        if self.killed or any(True for name in ("stopping", "signalled", "changing") for _ in self.events(name)):
            return True
        return any(fault.error == LATE for fault in self.met_faults())

    def met_faults(self) -> list[StorageFault]:
        """Storage faults that have met an operation."""
        return [self.life.storage[event["fault"]] for _, event in self.events("storage") if event["refused"]]

    @cached_property
    def session(self) -> str | None:
        """The library's name for this run; None if it was never opened."""
        return next((event["session"] for _, event in self.events("opened")), None)

    @cached_property
    def lineage(self) -> str:
        return str(next((event["lineage"] for _, event in self.events("opened")), ""))

    @cached_property
    def steps(self) -> list[int]:
        """Steps whose checkpoint some rank began, in order."""
        refused = {event["step"] for _, event in self.events("exists")}
        return sorted({event["step"] for _, event in self.events("started")} - refused)

    def completed(self, level: str) -> oracle.Completed:
        """How the checkpoints went at a level."""
        done, doubtful = [], []
        for step in self.steps:
            states = [
                event["state"] for _, event in self.events("level") if (event["step"], event["level"]) == (step, level)
            ]
            due = [level in event["due"] for _, event in self.events("returned") if event["step"] == step]
            if "done" in states:
                done.append(step)
            elif self.disturbed and self.life.every[level] and (not due or any(due)):
                doubtful.append(step)  # a round that was given up may have committed it
        return oracle.Completed(tuple(done), tuple(doubtful))

    @property
    def seconds(self) -> float:
        """How long the life took."""
        times = [event["at"] for record in self.records for event in record if "at" in event]
        return max(times) - min(times) if times else 0.0

    @property
    def limit_s(self) -> float:
        """How long it may have taken."""
        late_s = sum(fault.seconds for fault in self.met_faults())
        if not self.disturbed:
            return self.life.timeout_s
        return late_s + (self.life.incident.seconds if self.life.incident else 0.0) + _TIMEOUTS * self.life.timeout_s

    def is_victim(self, rank: int) -> bool:
        """Whether something was meant to happen to this rank."""
        return self.life.incident is not None and self.life.incident.victim == rank

    def restores(self, which: str) -> list[dict[str, Any]]:
        """The results of one restore, of the ranks that got that far."""
        return [event for _, event in self.events("restored") if event["which"] == which]

    def removed_nodes(self) -> set[int]:
        """Nodes whose directories were removed while the job ran."""
        faults = [self.life.running[event["fault"]] for _, event in self.events("running")]
        return {fault.node for fault in faults if fault.kind == "node"}


def levels_of(lines: Sequence[str]) -> set[str]:
    """Which levels the parts came from, by the library's own explanation."""
    shares = [match for line in lines for match in _SHARE.finditer(line)][-4:]
    words = {"rebuilt from parity": "parity"}
    return {words.get(match[2], match[2]) for match in shares if match[1] != "0"}


def check_ranks(outcome: Outcome, may_refuse: bool) -> list[Problem]:
    """Exceptions, contradictions between ranks, and starts that were refused for no reason."""
    problems = []
    for rank, event in outcome.events("exception"):
        if outcome.killed and event["type"] == "CommError":  # MPI has noticed before the launcher has
            continue
        if outcome.disturbed and event["typed"] and event["type"] in _TOLD:
            continue
        if event["type"] == "KeyboardInterrupt" and outcome.is_victim(rank):
            continue
        kind = HANG if event["type"] in ("TimeoutError", "PeerTimeoutError") else ERROR
        problems.append(Problem(kind, f"rank {rank}: {event['text']}"))
    for rank, event in outcome.events("problem"):
        problems.append(Problem(ERROR, f"rank {rank}: {event['text']}"))
    for rank, event in outcome.events("refused"):
        if not event["faulty"] and not may_refuse and not outcome.disturbed:
            problems.append(Problem(ERROR, f"rank {rank} refused to start: {event['text']}"))
    if outcome.seconds > outcome.limit_s:
        text = f"the life took {outcome.seconds:.1f} s: ranks have waited for each other until the library's timeout"
        problems.append(Problem(HANG, text))
    if outcome.disturbed:
        return problems
    for name, key in (("level", ("step", "level", "state")), ("restored", ("which", "step", "life"))):
        told = [
            [tuple(event[each] for each in key) for event in record if event["event"] == name]
            for record in outcome.records
        ]
        if any(sorted(each, key=str) != sorted(told[0], key=str) for each in told):
            problems.append(Problem(SPLIT, f"{name}: {[sorted(set(each), key=str) for each in told]}"))
    return problems


def check_restore(
    outcome: Outcome, which: str, bound: int | None, started: dict[int, set[int]], something: bool
) -> list[Problem]:
    """One restore.

    Args:
        bound: the step that must come back, or a later one; None if nothing must.
        started: life -> steps whose checkpoint was begun.
        something: whether there is any manifest, sound or not, or a whole step behind a fault: then training must not
            begin anew.
    """
    problems = []
    for rank, event in enumerate(outcome.restores(which)):
        step, where = event["step"], f"life {outcome.order.number}, {which} restore, rank {rank}"
        if event["wrong"]:
            count = sum(event["wrong"].values())
            problems.append(Problem(WRONG, f"{where}: step {step}, {count} wrong bytes: {event['wrong']}", count))
        elif step is not None and step not in started.get(event["life"], ()):
            problems.append(Problem(WRONG, f"{where}: step {step} of life {event['life']} was never begun", 1))
        if bound is not None and (step is None or step < bound):
            found = f"step {step}" if step is not None else f"nothing: {event['error'] or 'no error'}"
            lines = "\n      ".join(event["lines"])
            problems.append(Problem(LOST, f"{where}: step {bound} must come back, found {found}\n      {lines}"))
        elif step is None and not event["error"] and something:
            problems.append(Problem(ANEW, f"{where}: returned None although there are checkpoints"))
    return problems


def check_every(outcome: Outcome, must: set[int], started: dict[int, set[int]]) -> list[Problem]:
    """All committed steps, restored one by one.

    Args:
        must: those that nobody has harmed.
        started: life -> steps whose checkpoint was begun.
    """
    problems = []
    for rank, event in enumerate(outcome.restores("every")):
        step, where = event["step"], f"life {outcome.order.number}, step {event['wanted']}"
        if event["wrong"] or (step is not None and step not in started.get(event["life"], ())):
            count = sum(event["wrong"].values()) or 1
            problems.append(Problem(WRONG, f"{where}: {count} wrong bytes: {event['wrong']}", count))
        if step is None and event["wanted"] in must:
            problems.append(Problem(LOST, f"{where} (result {rank}): committed, but {event['error']}"))
    return problems


def check_late(outcome: Outcome) -> list[Problem]:
    """Where storage hangs, training goes on, and what is said names the operation that hangs."""
    late = [fault for fault in outcome.met_faults() if fault.error == LATE]
    if not late:
        return []
    problems, shortest_s = [], min(fault.seconds for fault in late)
    for rank, event in outcome.events("returned"):
        if outcome.life.on_busy == "skip" and event["seconds"] > 0.8 * shortest_s:
            text = f"rank {rank}: checkpoint(step={event['step']}) took {event['seconds']} s although on_busy is 'skip'"
            problems.append(Problem(HANG, text))
    for rank, event in outcome.events("busy"):
        if outcome.life.on_busy != "wait":
            problems.append(Problem(ERROR, f"rank {rank}: on_busy is 'skip', and yet: {event['text']}"))
    told = [event for _, event in outcome.events("hanging")]
    if shortest_s >= 2 * outcome.life.timeout_s and any(True for _ in outcome.events("busy")) and not told:
        problems.append(Problem(ERROR, "no report says where storage hangs"))
    return problems


def check_kept(outcome: Outcome, after: Sequence[Stored]) -> list[Problem]:
    """What was reported complete in this life, and is protected by ``keep``, is there.

    Args:
        after: sound files when the life was over.
    """
    life, problems = outcome.life, []
    if outcome.session is None:
        return []
    removed = outcome.removed_nodes()

    def home(rank: int) -> int:
        return rank // life.node_size

    for level in LEVELS:
        if removed and level in ("partner", "parity"):
            continue
        completed = outcome.completed(level)
        lacks = {
            step: [
                text
                for text in oracle.missing_at(level, after, (outcome.session, step), life.world, home)
                if not any(text.endswith(f"on node {node}") for node in removed)
            ]
            for step in {*completed.done, *completed.doubtful}
        }
        dated = level == "persistent" and outcome.order.scenario.kind == "clock"  # `keep` goes by the dates of commits
        for step in completed.must_stay(life.keep[level]) if not dated else completed.done[-1:]:
            if lacks[step]:
                text = f"step {step} was reported done at {level}, but after the life there is no {lacks[step]}"
                problems.append(Problem(LOST, text))
        choice = completed.one_of()
        if choice and all(lacks[step] for step in choice):
            problems.append(Problem(LOST, f"of steps {choice} none is complete at {level} any more: {lacks}"))
    return problems


def check_persistent(outcome: Outcome, before: Sequence[Stored], after: Sequence[Stored]) -> list[Problem]:
    """Commits of earlier lives that ``keep`` protects are still there.

    Args:
        before, after: sound files when the life began and ended.
    """
    completed = outcome.completed("persistent")
    if outcome.order.scenario.kind == "clock" and outcome.life.keep["persistent"]:
        return []
    keep, news = outcome.life.keep["persistent"], len(completed.done) + len(completed.doubtful)
    manifests = sorted((each for each in before if each.kind == "manifest"), key=lambda each: each.written_ns)
    there = {each.path for each in after}
    problems = []
    for place, manifest in enumerate(manifests):
        newer = len(manifests) - 1 - place + news
        if (news and keep and newer >= keep) or manifest.step in outcome.steps:
            continue
        files = [each for each in before if each.kind in ("manifest", "persistent") and each.step == manifest.step]
        gone = [each.path.name for each in files if each.session == manifest.session and each.path not in there]
        if gone:
            problems.append(Problem(LOST, f"step {manifest.step} was committed and is kept, but {gone} are gone"))
    return problems


def check_progress(outcome: Outcome, before: Sequence[Stored], after: Sequence[Stored], nodes: range) -> list[Problem]:
    """The newest step that could be restored still can be, or a newer one of this life."""
    if outcome.removed_nodes():  # what was saved before that has taken the place of older steps, and is lost
        return []
    view = oracle.View(nodes, outcome.lineage)
    had = oracle.newest(oracle.recoverable(before, view))
    have = oracle.newest(oracle.recoverable(after, view))
    completed = [outcome.completed(level) for level in LEVELS]
    news = [step for each in completed for step in (*each.done, *each.doubtful)]
    floor = None if had is None else min([had, *news])
    if floor is not None and (have is None or have < floor):
        text = f"before the life step {had} was recoverable, after it only step {have}; it saved {news}"
        return [Problem(LOST, text)]
    return []


def check_healed(
    outcome: Outcome, after: Sequence[Stored], look_sound: Sequence[Stored], nodes: range
) -> list[Problem]:
    """Where nothing but a restore has happened, what was restored can stand the loss of any node again.

    Args:
        look_sound: the same, and files whose harm shows only when all of them is read. Copies and parity are not,
            except by scrubbing.
    """
    life, results = outcome.life, outcome.restores("first")
    quiet = (
        not outcome.disturbed
        and not outcome.steps
        and not any(event["refused"] for _, event in outcome.events("storage"))
    )
    if not quiet or not results or results[0]["step"] is None or not (life.every["partner"] or life.every["parity"]):
        return []
    if any("it was saved under another lineage" in line for line in results[0].get("lines", ())):
        return []  # its files would not count on nodes
    if any(event["under_way"] for _, event in outcome.events("healed")):
        return []  # a slow machine: nothing says that it will not be
    problems, step = [], results[0]["step"]
    told = [event["text"] for _, event in outcome.events("warned") if event["type"] == "BackgroundFailureWarning"]
    on_nodes = {each.part for each in after if each.step == step and each.kind in ("local", "partner")}
    if any(each.bases and each.part not in on_nodes for each in after if each.step == step):
        return []  # parts that refer to earlier ones are not put on nodes
    unread = [each for each in look_sound if each.kind in ("partner", "parity")]
    whole = oracle.newest(oracle.recoverable([*after, *unread], oracle.View(nodes, outcome.lineage, (-1,))))
    if told and (whole is None or whole < step):
        return []  # restored from harmed files, where what it needed was good (bases): there is no sound file to copy
    for node in nodes:
        view = oracle.View([other for other in nodes if other != node], outcome.lineage, (-1,))
        left = oracle.newest(oracle.recoverable([*after, *unread], view))
        if left is None or left < step:
            said = f"; the job was told: {told[0]}" if told else ""
            what = f"step {step} was restored, but could not stand the loss of node {node} afterwards{said}"
            problems.append(Problem(LOST, what))
    return problems


def _read(path: Path) -> list[dict[str, Any]]:
    events = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # cut off by the kill
                break
    return events
