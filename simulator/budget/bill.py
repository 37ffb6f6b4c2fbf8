"""Node-hours, money and energy: of a run, of a campaign, and of calls that block for some time.

All nodes of a job are paid for as long as it runs, those that wait for a repair and spare ones too. A node draws
``[power] busy`` while it trains, also where that training is lost later, and ``waiting`` while it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deeppart.model import Level

from ..campaign.outcomes import Summary
from ..campaign.plan import Cadences, Planned
from ..machine.record import DAY_S, Machine
from ..timing.stages import TORCH_SAVE, Job, Protection, Times, times_of, torch_save_words
from .space import Space, space_lines, space_of

HOUR_S = 3600.0
#: What stands for a month.
MONTH_DAYS = 30.0
USEFUL, SPARES = "useful training", "spare nodes"


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a bill."""

    what: str  # the time went to
    node_hours: float  # of all nodes
    money: float | None  # in the machine's currency; None where it has no price
    kwh: float | None  # energy; None where the machine file does not say what a node draws


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run takes."""

    items: tuple[Item, ...]  # adding up to ``total``; the first is what was useful
    currency: str  # of the money; "" without a price

    @property
    def total(self) -> Item:
        """Of everything."""
        return _sum("all", self.items)

    @property
    def lost(self) -> Item:
        """Of what was no useful training."""
        nothing = replace(self.total, node_hours=0.0, money=_nothing(self.total.money), kwh=_nothing(self.total.kwh))
        return _sum("not useful", [nothing, *(item for item in self.items if item.what != USEFUL)])

    def document(self) -> dict[str, Any]:
        """The bill for JSON; money and energy are null where they are not known."""
        return {"currency": self.currency, "items": self.items, "not_useful": self.lost, "total": self.total}

    def row(self) -> dict[str, Any]:
        """What a row of a table has room for."""
        lost = self.lost
        row = {"node_hours": self.total.node_hours, "lost_node_hours": lost.node_hours}
        return row | {"lost_money": lost.money, "lost_kwh": lost.kwh, "currency": self.currency}


def item(machine: Machine, what: str, node_hours: float, *, busy: bool) -> Item:
    """What so many node-hours cost."""
    power, price = machine.power, machine.price
    watts = power.busy if busy or math.isinf(power.waiting) else power.waiting
    kwh = None if math.isinf(watts) else node_hours * watts / 1000
    return Item(what, node_hours, _money(node_hours, price.node_hour, kwh, price.kwh), kwh)


def _money(node_hours: float, per_hour: float, kwh: float | None, per_kwh: float) -> float | None:
    """Without the price of an hour, energy alone is what is paid; without both there is none."""
    parts = [] if math.isinf(per_hour) else [node_hours * per_hour]
    parts += [] if math.isinf(per_kwh) or kwh is None else [kwh * per_kwh]
    return sum(parts) if parts else None


def bill(
    machine: Machine, nodes: int, seconds: float, shares: Mapping[str, float], busy: Iterable[str] = (), spares: int = 0
) -> Bill:
    """The bill of a run."""
    hours = nodes * seconds / HOUR_S
    training = {USEFUL, *busy}
    items = [item(machine, what, share * hours, busy=what in training) for what, share in shares.items()]
    items += [item(machine, SPARES, spares * seconds / HOUR_S, busy=False)] if spares else []
    return Bill(tuple(items), machine.price.currency)


def _nothing(amount: float | None) -> float | None:
    """None of what is known, which is not the same as what is not known."""
    return None if amount is None else 0.0


def _sum(what: str, items: Iterable[Item]) -> Item:
    found = list(items)
    money = [each.money for each in found if each.money is not None]
    kwh = [each.kwh for each in found if each.kwh is not None]
    return Item(what, sum(each.node_hours for each in found), sum(money) if money else None, sum(kwh) if kwh else None)


def missing(machine: Machine) -> list[str]:
    """What is left out of a bill, and the keys of the machine file that would bring it in."""
    lines = []
    if math.isinf(min(machine.price.node_hour, machine.price.kwh)):
        lines.append("no money: [price] node_hour (or kwh) and currency are not in the machine file")
    elif math.isinf(machine.price.node_hour) and math.isinf(machine.power.busy):
        lines.append("no money: [price] kwh needs [power] busy, which is not in the machine file")
    elif math.isinf(machine.power.busy) and not math.isinf(machine.price.kwh):
        lines.append("money without that for energy: [price] kwh needs [power] busy, which is not in the machine file")
    if math.isinf(machine.power.busy):
        lines.append("no energy: [power] busy is not in the machine file")
    return lines


def cells(each: Item, currency: str) -> list[str]:
    """Node-hours, and money and energy where they are known, for people."""
    found = [show_hours(each.node_hours)]
    found += [show_money(each.money, currency)] if each.money is not None else []
    return found + ([show_energy(each.kwh)] if each.kwh is not None else [])


def show_money(amount: float, currency: str) -> str:
    """Money for people: ``1,234 USD``, ``0.42 USD``."""
    return f"{amount:,.0f} {currency}" if amount >= 100 else f"{amount:.3g} {currency}"


def show_energy(kwh: float) -> str:
    """Energy for people: ``3.2 MWh``."""
    for factor, unit in ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh")):
        if kwh >= 0.9995 * factor:
            return f"{kwh / factor:.3g} {unit}"
    return f"{kwh * 1000:.3g} Wh"


def show_hours(node_hours: float) -> str:
    """Node-hours for people."""
    return f"{node_hours:,.0f}" if node_hours >= 100 else f"{node_hours:.3g}"


# --- campaigns --------------------------------------------------------------------------------------------------------


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


def spending_lines(planned: Planned, cadences: Cadences, summary: Summary) -> list[str]:
    """What a campaign keeps and wears, and what its bill leaves out, in sentences."""
    machine, space = planned.job.machine, space_of_run(planned, cadences)
    lines = [f"no room: {line}; a job would end there" for line in space.too_large]
    return [*lines, *space_lines(machine, space, *daily_bytes(planned, cadences, summary)), *missing(machine)]


# --- blocked time -----------------------------------------------------------------------------------------------------


#: Seconds for which a call blocks, and training between two calls in seconds, of the usual table.
BLOCKED_S = (0.01, 0.1, 1.0, 10.0, 100.0)
PERIODS_S = (60.0, 600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to checkpoint a job, and what the simulator says that it takes."""

    name: str
    blocked_s: float  # training waits for so long


@dataclass(frozen=True, slots=True)
class Row:
    """What calls that block for some time cost."""

    period_s: float  # of training between two calls
    blocked_s: float  # of each
    way: str  # the way that blocks for so long; "" where the time is one that was asked about
    lost: float  # the share of the time in which training waits
    cost: Item  # of that, in the time that was asked about


def lost_share(blocked_s: float, period_s: float) -> float:
    """The share of the time in which training waits."""
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


def costs_of_blocking(
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
