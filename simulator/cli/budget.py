"""Node-hours, money, energy and space, as the commands show them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ..budget.bill import Bill, bill_rows
from ..budget.space import Space, bandwidth_share, drive_writes, drive_years
from ..machine.record import Machine
from .consoles import table

#: Lines at the end of a bill that are sums.
_SUMS = 2


def bill_table(bill: Bill, title: str) -> Table:
    """A line for each item, and what they come to."""
    head, *rows = bill_rows(bill)
    found = table(title, head)
    for place, row in enumerate(rows):
        if place == len(rows) - _SUMS:
            found.add_section()
        found.add_row(*row)
    return found


def bill_document(bill: Bill) -> dict[str, Any]:
    """The bill as JSON; money and energy are null where they are not known."""
    items = [asdict(each) for each in bill.items]
    return {"currency": bill.currency, "items": items, "not_useful": asdict(bill.lost), "total": asdict(bill.total)}


def bill_row(bill: Bill) -> dict[str, Any]:
    """Of a bill, what a row of a table has room for: all node-hours, and what was not useful."""
    lost = bill.lost
    row = {"node_hours": bill.total.node_hours, "lost_node_hours": lost.node_hours}
    return row | {"lost_money": lost.money, "lost_kwh": lost.kwh, "currency": bill.currency}


def space_document(
    machine: Machine, space: Space, node_daily_bytes: float, drained_daily_bytes: float
) -> dict[str, Any]:
    """What is kept and written as JSON; null where the machine file does not say what would be needed."""
    return {
        "steps": dict(space.steps),
        "node_bytes": dict(space.node_bytes),
        "node_capacity": known(space.node_capacity),
        "file_system_bytes": space.file_system_bytes,
        "file_system_capacity": known(space.file_system_capacity),
        "file_system_bandwidth_share": bandwidth_share(machine, drained_daily_bytes),
        "drive_writes_per_day": drive_writes(machine, node_daily_bytes),
        "drive_years": known(drive_years(machine, node_daily_bytes)),
        "too_large": space.too_large,
    }


def known(value: float) -> float | None:
    """The value; None for infinity, which stands for what is not known, and which JSON does not have."""
    return None if math.isinf(value) else value
