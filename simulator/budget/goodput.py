"""What a second of blocked time costs: goodput, node-hours, money and energy against the time that a call blocks.

Goodput is the share of the time in which training goes on. Of a job that trains for T seconds, then is blocked by a
call for b seconds, and so on, b / (T + b) is lost. What else checkpoints take (slower training in the background, work
that failures undo) is in :mod:`deeppart_simulator.advise` and :mod:`deeppart_simulator.campaign`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..machine.kinds import DAY_S
from ..machine.record import Machine
from ..timing.serializing import torch_save_words
from ..timing.stages import TORCH_SAVE, Job, Protection, times_of
from ..timing.times import Times
from .bill import HOUR_S, Item, item

#: Seconds for which a call blocks, and training between two calls in seconds, of the usual table.
BLOCKED_S = (0.01, 0.1, 1.0, 10.0, 100.0)
PERIODS_S = (60.0, 600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to checkpoint a job, and what the simulator says that it takes.

    Attributes:
        name: of the way.
        blocked_s: training waits for so long.
    """

    name: str
    blocked_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """What calls that block for some time cost.

    Attributes:
        period_s: of training between two calls.
        blocked_s: of each.
        way: the way that blocks for so long; "" where the time is one that was asked about.
        lost: the share of the time in which training waits.
        cost: of that, in the time that was asked about.
    """

    period_s: float
    blocked_s: float
    way: str
    lost: float
    cost: Item


def lost_share(blocked_s: float, period_s: float) -> float:
    """The share of the time in which training waits.

    Example:
        >>> lost_share(1.0, period_s=9.0)
        0.1
    """
    return blocked_s / (period_s + blocked_s)


def ways_of(job: Job) -> list[Way]:
    """What calls block for, by the simulator: this library; whole tensors, as DCP deals them out, straight to the file
    system, in the background and waited for; and ``torch.save``.

    Whole tensors are written as fast as this library writes: DCP's own serialization is not in it, so that these are
    lower bounds.
    """
    straight = replace(
        job, protection=Protection(local=False, partner=False), compression="none", capture="eager", files="rank"
    )
    own, whole = _times(job), _times(replace(straight, strategy="whole"))
    saved = _times(replace(straight, strategy=TORCH_SAVE))
    return [
        Way("deeppart", own.blocked_s),
        Way("DCP-like, in the background", whole.blocked_s),
        Way("DCP-like, waited for", whole.serial_s()),
        Way(torch_save_words(job.state.layout), saved.blocked_s),
    ]


def _times(job: Job) -> Times:
    return times_of(job, job.shares())


def rows_of(
    machine: Machine,
    nodes: int,
    periods_s: Sequence[float],
    blocked_s: Sequence[float],
    ways: Sequence[Way],
    days: float,
) -> list[Row]:
    """The table: for each period the times that are asked about, and those of the ways among them."""
    asked = [Way("", seconds) for seconds in blocked_s]
    found = []
    for period_s in sorted(set(periods_s)):
        for way in sorted([*dict.fromkeys(asked), *ways], key=lambda each: each.blocked_s):
            lost = lost_share(way.blocked_s, period_s)
            hours = lost * nodes * days * DAY_S / HOUR_S
            cost = item(machine, way.name, hours, busy=False)
            found.append(Row(period_s, way.blocked_s, way.name, lost, cost))
    return found
