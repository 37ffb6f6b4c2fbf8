"""The plan of a restore, without doing it: the step, the source of every part, and the reason against newer steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deeppart.comm import Comm, SingleComm, finish
from deeppart.errors import FormatError, StorageError
from deeppart.model import Level, Manifest
from deeppart.part import Signing, decode_manifest, parse_section_path
from deeppart.plan.restart import Candidate, Inventory, Outlook, Read, StoredParity, StoredPart, assign, survey
from deeppart.recovery import take_inventory
from deeppart.storage.files import read_file
from deeppart.storage.manifests import MANIFEST_LIMIT_BYTES, part_problem
from deeppart.storage.node import take_stock
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.steps import MANIFEST_NAME

#: (part, its file on the persistent level) -> what is wrong with that, or None.
Look = Callable[[int, str], str | None]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore.

    Attributes:
        candidate: the step that would be restored; None if none can be.
        reads: the rank and the source for each part.
        outlook: the other candidates, and the steps that cannot be recovered, with the reasons.
        problems: lines about files that were found and are passed over.
    """

    candidate: Candidate | None
    reads: tuple[Read, ...]
    outlook: Outlook
    problems: tuple[str, ...]


def plan_here(
    root: Path,
    lineage: str,
    local_dirs: Sequence[Path],
    ranks: int | None,
    step: int | None,
    signing: Signing | None = None,
) -> RestorePlan:
    """Plan with directories that this one process sees; each of ``local_dirs`` counts as a node."""
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
    return _plan(spread, size, step, _Looks(signing).problem)


def plan_together(
    comm: Comm,
    root: Path,
    lineage: str,
    local_dir: Path | None,
    node_of: tuple[int, ...],
    timeout: float,
    step: int | None,
    signing: Signing | None = None,
) -> RestorePlan:
    """Plan on the nodes themselves, one process per rank or per node (collective)."""
    inventory = _take(comm, node_of, local_dir, root, lineage, timeout, signing)
    looks, plan, texts = _Looks(signing), None, b""
    if comm.rank == 0:
        plan = _plan(inventory, comm.size, step, looks.problem)
        texts = json.dumps(looks.found).encode()
    found = json.loads(finish(comm, comm.broadcast(texts), "explain", timeout))
    return plan or _plan(inventory, comm.size, step, lambda part, path: found.get(path))


class _Looks:
    """Looks at files of the persistent level, once each.

    Attributes:
        found: path -> what is wrong with it.
    """

    def __init__(self, signing: Signing | None) -> None:
        self._signing = signing
        self._manifests: dict[Path, Manifest | str] = {}
        self.found: dict[str, str | None] = {}

    def problem(self, part: int, path: str) -> str | None:
        """Of one part."""
        if path not in self.found:
            place = parse_section_path(path)
            self.found[path] = self._problem_of(part, Path(path if place is None else place.file).parent)
        return self.found[path]

    def _problem_of(self, part: int, directory: Path) -> str | None:
        if directory not in self._manifests:
            path = directory / MANIFEST_NAME
            try:
                data = read_file(path, MANIFEST_LIMIT_BYTES)
                self._manifests[directory] = decode_manifest(data, where=str(path), signing=self._signing)
            except (OSError, FormatError, StorageError) as error:
                self._manifests[directory] = f"cannot be looked at: {error}"
        manifest = self._manifests[directory]
        if isinstance(manifest, str):
            return manifest
        return part_problem(directory, manifest, manifest.parts[part], self._signing)[0]


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
        PersistentLevel(root, signing=signing),
        lineage,
        lambda operation, what: finish(comm, operation, what, timeout),
    )


def _plan(inventory: Inventory, size: int, step: int | None, look: Look) -> RestorePlan:
    outlook = survey(inventory, step)
    candidates: list[Candidate] = []
    rejected, notes = list(outlook.rejected), list(inventory.problems)
    for each in outlook.candidates:
        sound, problems = _without_missing(each, size, look)
        if isinstance(sound, Candidate):
            candidates.append(sound)
            notes += [f"step {each.attempt.step}: {problem}" for problem in problems]
        else:
            rejected.append((each.attempt.step, "; ".join([*problems, f"no other source for part {sound}"])))
    outlook = replace(outlook, candidates=tuple(candidates), rejected=tuple(sorted(rejected, reverse=True)))
    reads = assign(candidates[0], size) if candidates else ()
    return RestorePlan(candidates[0] if candidates else None, reads, outlook, tuple(notes))


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
