"""The page of a comparison: the sides in one table, on common scales, and then each of them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from deeppart.model import LEVELS, Level
from deeppart.model.units import show_bytes, show_seconds, show_share

from ..advise.choose import describe
from ..advise.compare import Side, least_restart_of
from ..advise.text import bursts, what_if
from .compare_charts import comparison_charts
from .html import document, figure, folded, legend, section, table
from .page import groups_of, job_facts
from .timeline import legend_of, numbers_of, timeline_html

#: Kinds of nodes that are drawn of each side.
_MOST_GROUPS = 3


def write_comparison(path: Path, sides: Sequence[Side], command: str) -> None:
    """Write the page."""
    path.write_text(comparison_page(sides, command), encoding="utf-8")


def comparison_page(sides: Sequence[Side], command: str = "") -> str:
    """The page as a text; the same input, the same bytes."""
    least = least_restart_of(sides)
    words = (
        "<p>Each line is a job with the levels, the redundancy, the compression and the cadence that are advised for "
        f"it. Coming back after failures takes at least {show_share(least)} of the time; the chart leaves that out.</p>"
    )
    charts = "".join(f"<div>{figure(chart)}</div>" for chart in comparison_charts(sides))
    body = words + table(side_rows(sides), stacked=True) + f"<div class=charts>{charts}</div>"
    parts = [section("Side by side", body), _timelines(sides)]
    parts.append(section("The jobs", "".join(map(_one, sides))))
    return document(f"{len(sides)} jobs compared", "".join(parts), command)


def side_rows(sides: Sequence[Side]) -> list[list[str]]:
    """The sides as rows of a table with a head."""
    levels = [level for level in LEVELS if any(level in side.complete_s for side in sides)]
    rows = [["job", "levels", "blocked", *(f"until {level}" for level in levels), "call every", "flush every",
             "not new training", "writing", "doing again", "coming back", "to the file system a day",
             "to each drive a day"]]  # fmt: skip
    for side in sides:
        cells = [side.label, describe(side.job), show_seconds(side.blocked_s)]
        cells += [show_seconds(side.complete_s[level]) if level in side.complete_s else "" for level in levels]
        rows.append(cells + _advised(side))
    return rows


def _advised(side: Side) -> list[str]:
    if side.choice is None:
        return [""] * 8
    choice, waste = side.choice, side.choice.waste
    return [
        *map(show_seconds, (choice.cadence.period_s, choice.cadence.interval_s(Level.PERSISTENT))),
        *map(show_share, (waste.total, waste.cost, waste.rework, waste.restart)),
        *map(show_bytes, (choice.drained_daily_bytes, choice.node_daily_bytes)),
    ]


def _timelines(sides: Sequence[Side]) -> str:
    drawn = [groups_of(side.job)[:_MOST_GROUPS] for side in sides]
    bars = [bar for groups in drawn for group in groups for bar in group.bars]
    end_s = max((bar.end_s for bar in bars), default=1.0)
    parts = [
        f"<h3>{escape(side.label)}</h3>{timeline_html(groups, end_s)}{folded('the numbers', table(numbers_of(groups)))}"
        for side, groups in zip(sides, drawn, strict=True)
    ]
    every = [group for groups in drawn for group in groups]
    words = "<p>What nodes do from the call on; all on the same scale. Nodes that do the same are one line.</p>"
    return section("One checkpoint", words + legend(legend_of(every)) + "".join(parts))


def _one(side: Side) -> str:
    notes = [*what_if(side.job.machine, side.job.nodes), *bursts(side.job)]
    words = "".join(f"<p>{escape(note)}.</p>" for note in notes)
    title = f"{side.label}: {side.job.state.name} on {side.job.machine.name}"
    return f"<h3>{escape(title)}</h3>{job_facts(side.job)}{words}"
