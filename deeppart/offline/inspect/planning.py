"""The plan of a restore, without doing it: the step, the source of every part, and the reason against newer steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.comm import Comm, SingleComm, finish
from deeppart.errors import FormatError
from deeppart.model import Attempt, Level, StepKey
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.inspect.node_files import lineage_on_nodes
from deeppart.part import Signing
from deeppart.plan.restart import (
    Candidate,
    Inventory,
    Read,
    Source,
    StoredParity,
    StoredPart,
    assign,
    explain,
    explain_parts,
    survey,
)
from deeppart.recovery import suspect_lines, take_inventory
from deeppart.storage import (
    PersistentLevel,
    PosixStore,
    StoredStep,
    parse_step_name,
    read_lineage,
    read_step,
    take_stock,
)

#: (part, its file on the persistent level) -> what is wrong with that, or None.
Look = Callable[[int, str], str | None]


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source of a part: as :class:`deeppart.plan.restart.Source`; ``readers``: how many ranks can read it."""

    level: str
    path: str
    nbytes: int
    index_digest: str
    raw_bytes: int
    refers: bool
    readers: int


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part, the ranks that read it, the first of them, and its sources in the order in which they are tried."""

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
    step: int | None
    attempt: Attempt | None
    parts: tuple[PlannedPart, ...]
    explanation: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    others: tuple[int, ...]
    suspect: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        """True if a step can be recovered."""
        return self.step is not None


def plan_here(
    root: Path, local_dirs: Sequence[Path], ranks: int | None, step: int | None, signing: Signing | None = None
) -> RestorePlan:
    """Plan with directories that this one process sees; each of ``local_dirs`` counts as a node."""
    lineage = _lineage(root, needs_nodes=bool(local_dirs))
    stocks = [take_stock(directory, lineage, signing) for directory in local_dirs]
    inventory = _take(SingleComm(), (0,), None, root, lineage, 60.0, signing)
    problems = (*inventory.damaged, *inventory.problems, *(line for stock in stocks for line in stock.problems))
    nodes = max(1, len(stocks))
    size = ranks or max((entry.attempt.world_size for entry in inventory.committed), default=0)
    if ranks is None:
        size = max([size, *(part.attempt.world_size for stock in stocks for part in stock.parts)])
    size = max(size, nodes)
    node_of = tuple(rank * nodes // size for rank in range(size))
    found: list[tuple[StoredPart, ...]] = [()] * size
    parity: list[tuple[StoredParity, ...]] = [()] * size
    for node, stock in enumerate(stocks):
        found[node_of.index(node)] = tuple(stock.parts)
        parity[node_of.index(node)] = tuple(stock.parity)
    spread = Inventory(tuple(found), node_of, inventory.committed, problems, inventory.damaged, tuple(parity))
    return _plan(root, spread, size, step, _Looks(root, signing).problem)


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
    """Plan on the nodes themselves, one process per rank or per node, of which one ``leads`` and reads ``local_dir``
    (collective).
    """
    lineage = _lineage(root, needs_nodes=local_dir is not None)
    inventory = _take(comm, node_of, local_dir if leads else None, root, lineage, timeout, signing)
    looks, plan, texts = _Looks(root, signing), None, b""
    if comm.rank == 0:
        plan = _plan(root, inventory, comm.size, step, looks.problem)
        texts = json.dumps(looks.found).encode()
    found = json.loads(finish(comm, comm.broadcast(texts), "explain", timeout))
    return plan or _plan(root, inventory, comm.size, step, lambda part, path: found.get(path))


def _lineage(root: Path, *, needs_nodes: bool) -> str:
    require_directory(root)
    lineage = read_lineage(root)
    if lineage is None:
        raise FormatError(
            "no job has checkpointed in this directory: it has no lineage record",
            where=str(root.absolute()),
            todo="give the persistent_dir of a job",
        )
    return lineage_on_nodes(root) if needs_nodes else lineage


class _Looks:
    """Looks at files of the persistent level, once each.

    Attributes:
        found: path -> what is wrong with it.
    """

    def __init__(self, root: Path, signing: Signing | None) -> None:
        self._store, self._signing = PosixStore(access.below_root(root)), signing
        self._steps: dict[StepKey, StoredStep] = {}
        self.found: dict[str, str | None] = {}

    def problem(self, part: int, path: str) -> str | None:
        """Of one part."""
        if path not in self.found:
            self.found[path] = self._problem_of(part, Path(path).parent.name)
        return self.found[path]

    def _problem_of(self, part: int, step: str) -> str | None:
        key = parse_step_name(step)
        assert key is not None, step
        if key not in self._steps:
            self._steps[key] = read_step(self._store, key, self._signing)
        found = self._steps[key]
        return found.part_problem(part) if found.error is None else f"cannot be looked at: {found.error}"


def _take(
    comm: Comm,
    node_of: tuple[int, ...],
    local_dir: Path | None,
    root: Path,
    lineage: str,
    timeout: float,
    signing: Signing | None,
) -> Inventory:
    return take_inventory(
        comm,
        node_of,
        local_dir,
        PersistentLevel(PosixStore(root), signing),
        lineage,
        lambda operation, what: finish(comm, operation, what, timeout),
    )


def _plan(root: Path, inventory: Inventory, size: int, step: int | None, look: Look) -> RestorePlan:
    outlook = survey(inventory, step)
    candidates: list[Candidate] = []
    rejected, problems = list(outlook.rejected), [*outlook.notes, *inventory.problems]
    for each in outlook.candidates:
        sound, found = _without_missing(each, size, look)
        if isinstance(sound, Candidate):
            candidates.append(sound)
            problems += [f"step {each.attempt.step}: {problem}" for problem in found]
        else:
            rejected.append((each.attempt.step, "; ".join([*found, f"no other source for part {sound}"])))
    chosen = candidates[0] if candidates else None
    reads = () if chosen is None else assign(chosen, size)
    return RestorePlan(
        directory=root,
        step=None if chosen is None else chosen.attempt.step,
        attempt=None if chosen is None else chosen.attempt,
        parts=() if chosen is None else tuple(_planned(read, chosen.sources[read.part]) for read in reads),
        explanation=() if chosen is None else (explain(chosen, reads), *explain_parts(chosen, reads)),
        rejected=tuple(Rejected(*each) for each in sorted(rejected, reverse=True)),
        others=tuple(sorted({each.attempt.step for each in candidates[1:]}, reverse=True)),
        suspect=() if chosen is None else tuple(suspect_lines(PosixStore(root), chosen.attempt)),
        problems=tuple(problems),
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
    """A step without files of the persistent level that a restore would find missing or damaged, and what they are."""
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
