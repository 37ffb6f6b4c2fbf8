"""The part of a page about a bill: what was not useful, as a chart, and every line of it as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..budget.bill import USEFUL, Bill, Item, bill_rows, cells
from .chart import Chart, Panel, bars, linear_axis, rows, rows_height, show_count
from .html import figure, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bill_html(bill: Bill, name: str) -> str:
    """The chart and the table."""
    found = [each for each in bill.items if each.what != USEFUL and each.node_hours]
    return (figure(bill_chart(bill, name, found)) if found else "") + table(bill_rows(bill))


def bill_chart(bill: Bill, name: str, found: Sequence[Item]) -> Chart:
    """Some lines of a bill, by node-hours."""
    draw = partial(_draw, [(_label(each, bill.currency), each.node_hours) for each in found])
    return Chart(name, (Panel("Node-hours that were not useful training", draw, rows_height(len(found))),))


def _label(each: Item, currency: str) -> str:
    hours, *money = cells(each, currency)
    return f"{each.what}: {money[0] if money else hours}"


def _draw(found: Sequence[tuple[str, float]], axes: Axes) -> None:
    bars(axes, [hours for _, hours in found], "violet")
    rows(axes, [label for label, _ in found])
    linear_axis(axes, "x", 1.05 * max(hours for _, hours in found), show_count, 4)
    axes.set_xlabel("node-hours")
