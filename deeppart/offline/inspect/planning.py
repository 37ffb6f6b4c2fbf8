"""Plans a restore without doing it: the step, the sources of every part, and why newer steps cannot be restored."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deeppart import access
from deeppart.comm import Comm, SingleComm, finish
from deeppart.model import Attempt, Level
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.inspect.node_files import lineage_of, look_at_nodes
from deeppart.part import Signing, parse_step_name
from deeppart.plan.restart import (
    Candidate,
    Inventory,
    Read,
    Source,
    assign,
    explain,
    explain_parts,
    survey,
)
from deeppart.recovery import Ranks, suspect_lines, take_inventory
from deeppart.storage import NodeContents, PersistentLevel, PosixStore, read_step

#: (part, its file on the persistent level) -> what is wrong with it, or None.
Look = Callable[[int, str], str | None]
#: Timeout of a single process, which waits for no other.
_ALONE_S = 60.0


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source of a part, see :class:`deeppart.plan.restart.Source`; ``readers``: number of ranks that can read it."""

    level: str
    path: str
    nbytes: int
    index_digest: str
    raw_bytes: int
    refers: bool
    readers: int


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part, the ranks that read it, the first of these, and its sources in the order in which they are tried."""

    part: int
    reader: int
    readers: tuple[int, ...]
    sources: tuple[PlannedSource, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A step that cannot be recovered."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore. Fields: docs/commands.md, explain."""

    directory: Path
    step: int | None = None
    attempt: Attempt | None = None
    parts: tuple[PlannedPart, ...] = ()
    explanation: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    others: tuple[int, ...] = ()
    suspect: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """True if a step can be recovered."""
        return self.step is not None


def plan_here(
    root: Path, local_dirs: Sequence[Path], ranks: int | None, step: int | None, signing: Signing | None = None
) -> RestorePlan:
    """Plan with directories that this process can read; each of ``local_dirs`` counts as a node."""
    require_directory(root)
    lineage = lineage_of(root, with_nodes=bool(local_dirs))
    stocks = [stock for _, stock in look_at_nodes(root, local_dirs, signing)]
    persistent = PersistentLevel(PosixStore(root), signing)
    inventory = take_inventory(Ranks(SingleComm(), (0,), _ALONE_S), None, persistent, lineage)
    here = NodeContents.inventory(stocks, ())
    nodes = max(1, len(stocks))
    size = ranks or max((entry.attempt.world_size for entry in inventory.committed), default=0)
    if ranks is None:
        size = max([size, *(part.attempt.world_size for stock in stocks for part in stock.parts)])
    size = max(size, nodes)
    node_of = tuple(rank * nodes // size for rank in range(size))
    at = {node_of.index(node): node for node in range(len(stocks))}  # one rank lists the files of its node
    spread = replace(
        inventory,
        found=tuple(here.found[at[rank]] if rank in at else () for rank in range(size)),
        node_of=node_of,
        problems=(*inventory.damaged, *inventory.problems, *(line for stock in stocks for line in stock.lines())),
        parity=tuple(here.parity[at[rank]] if rank in at else () for rank in range(size)),
    )
    return _plan(root, spread, size, step, signing)


def plan_together(
    comm: Comm,
    root: Path,
    local_dir: Path | None,
    node_of: tuple[int, ...],
    timeout: float,
    step: int | None,
    signing: Signing | None = None,
    *,
    leads: bool = True,
) -> RestorePlan:
    """Plan on the nodes themselves, with one process per rank or node (collective). One process of each node ``leads``
    and reads ``local_dir``. Rank 0 has the plan, the others only its step.
    """
    require_directory(root)
    lineage = lineage_of(root, with_nodes=local_dir is not None)
    ranks, persistent = Ranks(comm, node_of, timeout, doing="explain"), PersistentLevel(PosixStore(root), signing)
    inventory = take_inventory(ranks, local_dir if leads else None, persistent, lineage)
    plan, text = RestorePlan(root), b""
    if comm.rank == 0:
        plan = _plan(root, inventory, comm.size, step, signing)
        text = json.dumps(plan.step).encode()
    return replace(plan, step=json.loads(finish(comm, comm.broadcast(text), "explain", timeout)))


def _looks(root: Path, signing: Signing | None) -> Look:
    """A function that checks files of the persistent level, each once."""
    store = PosixStore(access.below_root(root))
    step_of = functools.cache(lambda key: read_step(store, key, signing))

    @functools.cache
    def problem(part: int, path: str) -> str | None:
        step = step_of(parse_step_name(Path(path).parent.name))
        return step.part_problem(part) if step.error is None else f"cannot be looked at: {step.error}"

    return problem


def _plan(root: Path, inventory: Inventory, size: int, step: int | None, signing: Signing | None) -> RestorePlan:
    outlook, look = survey(inventory, step), _looks(root, signing)
    candidates: list[Candidate] = []
    rejected, problems = list(outlook.rejected), [*outlook.notes, *inventory.problems]
    for each in outlook.candidates:
        sound, found = _without_missing(each, size, look)
        if isinstance(sound, Candidate):
            candidates.append(sound)
            problems += [f"step {each.attempt.step}: {problem}" for problem in found]
        else:
            rejected.append((each.attempt.step, "; ".join([*found, f"no other source for part {sound}"])))
    plan = RestorePlan(
        root,
        rejected=tuple(Rejected(*each) for each in sorted(rejected, reverse=True)),
        others=tuple(sorted({each.attempt.step for each in candidates[1:]}, reverse=True)),
        problems=tuple(problems),
    )
    if not candidates:
        return plan
    chosen = candidates[0]
    reads = assign(chosen, size)
    return replace(
        plan,
        step=chosen.attempt.step,
        attempt=chosen.attempt,
        parts=tuple(_planned(read, chosen.sources[read.part]) for read in reads),
        explanation=(explain(chosen, reads), *explain_parts(chosen, reads)),
        suspect=tuple(suspect_lines(PosixStore(root), chosen.attempt)),
    )


def _planned(read: Read, sources: Sequence[Source]) -> PlannedPart:
    return PlannedPart(
        read.part,
        read.reader,
        tuple(read.readers),
        tuple(
            PlannedSource(
                each.level, each.path, each.nbytes, each.index_digest, each.raw_bytes, each.refers, len(each.readers)
            )
            for each in sources
        ),
    )


def _without_missing(candidate: Candidate, size: int, look: Look) -> tuple[Candidate | int, list[str]]:
    """The candidate without files of the persistent level that a restore would find missing or damaged, and lines about
    these.
    """
    problems: list[str] = []
    while True:
        bad = []
        for read in assign(candidate, size):
            if read.source.level == Level.PERSISTENT and (problem := look(read.part, read.source.path)) is not None:
                bad.append((read.part, read.source.location))
                problems.append(f"part {read.part} on the persistent level {problem}")
        if not bad:
            return candidate, problems
        rest = candidate.without(bad)
        if isinstance(rest, int):
            return rest, problems
        candidate = rest
