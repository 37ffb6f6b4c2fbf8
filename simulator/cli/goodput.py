"""``deeppart-sim goodput``: what a second of blocked time costs."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.errors import ConfigError

from ..advise.text import what_if
from ..budget.bill import BLOCKED_S, MONTH_DAYS, PERIODS_S, Row, missing, rows_of, ways_of
from ..machine.record import DAY_S, MOST_RANKS_PER_NODE
from ..report.goodput_page import cost_rows, write_goodput
from ..timing.stages import Job
from .command_line import command_line
from .consoles import console, table
from .options import Common, make_job, print_json, ranks_option, read_time, write_csv
from .parameters import FiniteRange
from .scale import describe_state, heading
from .table_options import table_options

#: A century, and less than any call takes: beyond it is not time that somebody asks about.
_MOST_DAYS, _LEAST_S = 36_525.0, 1e-6


@click.command(short_help="Show what a second of blocked time costs.")
@table_options
@ranks_option
@click.option(
    "--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), help="On each node; the machine's if left out."
)
@click.option("--every", metavar="TIME,...", help="Training between two calls.  [default: 1min,10min,1h]")
@click.option("--blocked", metavar="TIME,...", help="What a call blocks for.  [default: 10ms,100ms,1s,10s,100s]")
@click.option(
    "--days",
    type=FiniteRange(min=0, max=_MOST_DAYS, min_open=True),
    default=MONTH_DAYS,
    show_default=True,
    help="In which it costs.",
)
def goodput(
    common: Common, ranks: int, ranks_per_node: int | None, every: str | None, blocked: str | None, days: float
) -> int:
    """What calls that block for so long take of the goodput, in node-hours, money and energy.

    Beside these stands what this library, whole tensors as DCP deals them out, and torch.save are predicted to block
    for.
    """
    found = common.read_machine()
    one_node = ranks <= (ranks_per_node or found.ranks_per_node)
    options = {"ranks_per_node": ranks_per_node, "partner": False if one_node else None}
    job = make_job(common.read_state(), found, ranks, options)
    periods = PERIODS_S if every is None else _times(every, "--every")
    asked = BLOCKED_S if blocked is None else _times(blocked, "--blocked")
    rows = rows_of(job.machine, job.nodes, periods, asked, ways_of(job), days)
    if common.csv_path is not None:
        write_csv(common.csv_path, [row_of(row) for row in rows])
    if common.report_path is not None:
        write_goodput(common.report_path, job, rows, days, command_line())
    if common.as_json:
        print_json(document(job, rows, days))
        return GOOD
    out = console()
    out.print(heading(job))
    for note in what_if(job.machine, job.nodes):
        out.print(note, soft_wrap=True)
    out.print(_table(job, rows, days))
    for line in missing(job.machine):
        out.print(f"- {line}", soft_wrap=True)
    return GOOD


def _times(text: str, name: str) -> list[float]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(
            f"impossible value for {name}", expected="times, separated by commas, such as 1min,10min", found=repr(text),
            where=name,
        )  # fmt: skip
    return [_time(word, name) for word in words]


def _time(word: str, name: str) -> float:
    seconds = read_time(word, name)
    if not _LEAST_S <= seconds <= _MOST_DAYS * DAY_S:
        raise ConfigError(
            f"impossible value for {name}", expected=f"a time from 1 us to {_MOST_DAYS:g} days", found=repr(word),
            where=name,
        )  # fmt: skip
    return seconds


def document(job: Job, rows: list[Row], days: float) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "format": "deeppart-sim-goodput",
        "version": 1,
        "state": describe_state(job),
        "machine": job.machine.name,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "days": days,
        "currency": job.machine.price.currency,
        "notes": [*what_if(job.machine, job.nodes), *missing(job.machine)],
        "rows": [row_of(row) for row in rows],
    }


def row_of(row: Row) -> dict[str, Any]:
    """A row, flat; money and energy are left empty where they are not known."""
    return {
        "every_s": row.period_s,
        "blocked_s": row.blocked_s,
        "way": row.way,
        "lost": row.lost,
        "node_hours": row.cost.node_hours,
        "money": row.cost.money,
        "kwh": row.cost.kwh,
    }


def _table(job: Job, rows: list[Row], days: float) -> Table:
    head, *lines = cost_rows(job, rows, days)
    found = table(f"what blocked time costs on {job.nodes:,} nodes", head, left=3)
    before = rows[0].period_s
    for row, line in zip(rows, lines, strict=True):
        if row.period_s != before:
            found.add_section()
        before = row.period_s
        found.add_row(*line, style="bold" if row.way else "")
    return found
