"""What there is to restore from, when a restore begins."""

from __future__ import annotations

from pathlib import Path

from deeppart.comm.waiting import finish
from deeppart.plan.restart import Inventory
from deeppart.recovery.inventory import take_inventory
from deeppart.session.record import Session


def take_stock(session: Session, timeout: float) -> Inventory:
    """List what lies on nodes and on the persistent level (collective)."""
    rank, directories = session.comm.rank, session.topology.directories
    inventory = take_inventory(
        session.comm,
        session.topology.node_of,
        Path(directories[rank]) if session.leads_directory else None,
        session.persistent,
        session.lineage,
        lambda operation, what: finish(session.comm, operation, f"restore, {what}", timeout),
    )
    if session.owner is not None:
        session.owner.clock.saw(max((entry.created for entry in inventory.committed), default=""))
    return inventory
