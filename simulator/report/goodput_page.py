"""The page of what blocked time costs: the share of goodput that is lost, and what each way to checkpoint takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from deeppart.model.units import show_seconds, show_share

from ..advise.text import what_if
from ..budget.bill import Row, cells, missing, show_hours
from ..timing.stages import Job
from .chart import Chart, Mark, Panel, log_axis, log_time_axis, rows, rows_height, show_count, show_part
from .html import document, figure, folded, section, table
from .page import job_facts
from .palette import SERIES, light

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_goodput(path: Path, job: Job, found: Sequence[Row], days: float, command: str) -> None:
    """Write the page."""
    path.write_text(goodput_page(job, found, days, command), encoding="utf-8")


def goodput_page(job: Job, found: Sequence[Row], days: float, command: str = "") -> str:
    """The page as a text; the same input, the same bytes."""
    words = (
        "<p>A call blocks training for so long, and then training goes on until the next one. What else checkpoints "
        "take is not in it: slower training in the background, and work that failures undo.</p>"
    )
    marked = {number for number, row in enumerate(found) if row.way}
    left_out = "".join(f"<li>{escape(line)}</li>" for line in missing(job.machine))
    body = (
        words + figure(goodput_chart(found, days)) + folded("the numbers", table(cost_rows(job, found, days), marked))
    )
    body += f"<ul>{left_out}</ul>" if left_out else ""
    notes = "".join(f"<p>{escape(note)}.</p>" for note in what_if(job.machine, job.nodes))
    title = f"What blocked time costs: {job.state.name} on {job.ranks} ranks of {job.machine.name}"
    return document(title, job_facts(job) + notes + section("Blocked time and goodput", body), command)


def cost_rows(job: Job, found: Sequence[Row], days: float) -> list[list[str]]:
    """The rows as those of a table with a head; columns only for what is known."""
    head = ["every", "a call blocks", "as", "goodput lost", f"node-hours in {days:g} days"]
    head += ["money"] if found[0].cost.money is not None else []
    head += ["energy"] if found[0].cost.kwh is not None else []
    lines = [head]
    for row in found:
        asked = [show_seconds(row.period_s), show_seconds(row.blocked_s), row.way, show_share(row.lost)]
        lines.append([*asked, *cells(row.cost, job.machine.price.currency)])
    return lines


def goodput_chart(found: Sequence[Row], days: float) -> Chart:
    """The share that is lost against the time that a call blocks; and node-hours of each way."""
    colours = dict(zip(dict.fromkeys(row.period_s for row in found), SERIES, strict=False))
    shown = [row for row in found if row.period_s in colours]
    ways = list(dict.fromkeys(row.way for row in found if row.way))
    key = [Mark(f"every {show_seconds(period_s)}", colour, "line") for period_s, colour in colours.items()]
    key.append(Mark("what a way blocks for", "soft", "point"))
    panels = (
        Panel("Goodput that is lost", partial(_lost, shown, colours)),
        Panel(f"Node-hours in {days:g} days", partial(_hours, shown, colours, ways), rows_height(len(ways))),
    )
    return Chart("goodput", panels, tuple(key))


def _lost(shown: Sequence[Row], colours: dict[float, str], axes: Axes) -> None:
    for period_s, colour in colours.items():
        mine = [row for row in shown if row.period_s == period_s]
        axes.plot([row.blocked_s for row in mine], [row.lost for row in mine], color=light(colour), lw=1.6)
        ways = [row for row in mine if row.way]
        axes.plot([row.blocked_s for row in ways], [row.lost for row in ways], "o", ms=5, color=light(colour))
    log_time_axis(axes, "x", [row.blocked_s for row in shown], most=5)
    log_axis(axes, "y", [row.lost for row in shown], show_part)
    axes.set(xlabel="a call blocks for", ylabel="share of the time that is lost")


def _hours(shown: Sequence[Row], colours: dict[float, str], ways: Sequence[str], axes: Axes) -> None:
    for period_s, colour in colours.items():
        mine = [row for row in shown if row.period_s == period_s and row.way]
        places = [ways.index(row.way) for row in mine]
        axes.plot([row.cost.node_hours for row in mine], places, "o", ms=8, color=light(colour))
    rows(axes, [f"{way}: {_from_to(shown, way)}" for way in ways])
    log_axis(axes, "x", [row.cost.node_hours for row in shown if row.way], show_count, most=4)
    axes.set_xlabel("node-hours")


def _from_to(shown: Sequence[Row], way: str) -> str:
    """The least and the most node-hours of a way."""
    hours = [row.cost.node_hours for row in shown if row.way == way]
    least, most = show_hours(min(hours)), show_hours(max(hours))
    return least if least == most else f"{least} to {most}"
