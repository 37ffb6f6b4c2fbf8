"""After a restore: what the step has lost of its copies and parity is rebuilt in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deeppart.comm import Comm
from deeppart.nodes.exchange.memory import Arena
from deeppart.plan.restart import Inventory
from deeppart.recovery.recover import Recovered
from deeppart.repair.heal import Healer, heal_recovered, healing_for
from deeppart.save.job import Reader, Repair, StagingLease
from deeppart.save.pipeline import Pipeline
from deeppart.save.retention import Retention
from deeppart.session.record import Session


def heal_redundancy(
    session: Session,
    pipeline: Pipeline,
    retention: Retention,
    arena: Arena,
    recovered: Recovered,
    inventory: Inventory,
) -> tuple[str, ...]:
    """Submit what a restored step lacks to the pipeline."""
    attempt, lines = recovered.attempt, list[str]()
    step = attempt.step
    healing = healing_for(session.protection, recovered, inventory)
    if healing and attempt.lineage != session.lineage:
        # Its files say whose they are, and on nodes only those of this lineage count.
        reason = "it was saved under another lineage; it is in persistent_dir, the next checkpoint is protected again"
        return (f"step {step}: its redundancy is not rebuilt: {reason}",)
    if healing.lacks_parity:
        reason = "its parts refer to older files; the next checkpoint of that level is protected again"
        lines.append(f"step {step}: its parity is not rebuilt: {reason}")
    if not healing:
        pipeline.ledger.restored(attempt)
        return tuple(lines)
    retention.adopt(attempt.key)
    lines.append(f"step {step}: rebuilding redundancy in the background: {healing.describe()}")

    def run(channel: Comm, drive: Any, release: Callable[[], None]) -> None:
        healer = Healer(channel, drive, session.node_levels, session.limit, arena)
        heal_recovered(healer, healing, recovered, inventory, session.protection, release)
        pipeline.ledger.restored(attempt)

    mine = [write.part for write in healing.writes if write.rank == session.comm.rank]
    lease = StagingLease(mine or None, (Reader.HEAL,))
    pipeline.submit_repair(Repair(attempt, f"rebuilding the redundancy of step {step}", run, lease))
    return tuple(lines)
