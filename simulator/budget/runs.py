"""What a campaign takes: its bill, and its space."""

from __future__ import annotations

from deeppart.model import Level

from ..campaign.outcomes import Summary
from ..campaign.plan import Cadences, Planned
from ..machine.kinds import DAY_S
from .bill import USEFUL, Bill, bill
from .space import Space, space_of

#: A share of a summary -> its name in tables.
LABELS = {
    "useful": USEFUL,
    "lost": "training lost",
    "blocked": "blocked by checkpoints",
    "waiting": "waiting for room",
    "slowed": "slowed by the background",
    "down": "down",
    "short of nodes": "waiting for nodes",
    "restoring": "restoring",
}
#: What a job does that was told that its turn will end.
LEAVING = "saving before the end of a turn"
_BUSY = ("lost", "slowed")
#: What an elastic job's nodes do that are not there: it trains more slowly while they are repaired.
FEWER = "training on fewer nodes"
_ROUNDING = 1e-9


def bill_of_run(planned: Planned, cadences: Cadences, summary: Summary) -> Bill:
    """The mean bill of a campaign's runs; while the job is in a queue it holds no nodes."""
    shares = {label: summary.shares[name].mean for name, label in LABELS.items()}
    leaving, held = summary.shares["leaving"].mean, 1 - summary.shares["queued"].mean
    shares |= {LEAVING: leaving} if leaving else {}
    fewer = held - sum(shares.values())
    shares |= {FEWER: fewer} if fewer > _ROUNDING else {}
    machine, busy = planned.job.machine, [LABELS[name] for name in _BUSY]
    shares = {label: share / held for label, share in shares.items()} if held > 0 else dict.fromkeys(shares, 0.0)
    return bill(machine, planned.nodes, cadences.wall_s * held, shares, busy, cadences.spares)


def space_of_run(planned: Planned, cadences: Cadences) -> Space:
    """What a campaign keeps at each level."""
    return space_of(planned.on(planned.nodes), cadences.every, cadences.keep)


def daily_bytes(planned: Planned, cadences: Cadences, summary: Summary) -> tuple[float, float]:
    """Bytes written per day: to each node's storage on average, and to the file system."""
    days = cadences.wall_s / DAY_S
    written = {level: estimate.mean / days for level, estimate in summary.nbytes.items()}
    drained = written.pop(Level.PERSISTENT, 0.0)
    return sum(written.values()) / planned.nodes, drained
