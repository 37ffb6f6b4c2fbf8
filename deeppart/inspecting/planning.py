"""What a restore would do, without doing it: which step, every part from where, and why not a newer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.comm.base import Comm, finish
from deeppart.comm.single import SingleComm
from deeppart.levels.node import take_stock
from deeppart.levels.persistent import PersistentLevel
from deeppart.part import Signing
from deeppart.recovery import take_inventory
from deeppart.restart import Candidate, Inventory, Outlook, Read, StoredParity, StoredPart, assign, survey


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore.

    Attributes:
        candidate: the step that would be restored; None if none can be.
        reads: who would read which part from where.
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
    """Plan with directories that this one process sees; each of ``local_dirs`` counts as a node.

    Args:
        ranks: of the job that would restore; None for as many as saved the step. They are spread over the nodes evenly.
        signing: what manifests and parts must be signed with; None: not checked.
    """
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
    return _plan(spread, size, step)


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
    """Plan on the nodes themselves, one process per rank or per node (collective).

    Args:
        local_dir: this process' node-local directory if it is the one to list it.
    """
    inventory = _take(comm, node_of, local_dir, root, lineage, timeout, signing)
    return _plan(inventory, comm.size, step)


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


def _plan(inventory: Inventory, size: int, step: int | None) -> RestorePlan:
    outlook = survey(inventory, step)
    candidate = outlook.candidates[0] if outlook.candidates else None
    reads = assign(candidate, size) if candidate is not None else ()
    return RestorePlan(candidate, reads, outlook, inventory.problems)
