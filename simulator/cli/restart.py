"""``deeppart-sim restart``: ways to come back after a failure, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.model.units import show_seconds

from ..advise.choose import Choice, describe
from ..advise.choose import advise as find_advice
from ..advise.compare import PARTS, REPLAY, WRITING, Comparison, compare
from ..advise.text import what_if
from ..machine.record import DAY_S, WAYS
from ..report.restart_charts import OF_ONE
from ..report.restart_page import after_rows, share_rows, write_restarts
from .command_line import command_line
from .consoles import console, status_console, table
from .options import Common, free_job_options, make_job, print_json, ranks_option, wanted_of, write_csv
from .scale import describe_state, heading
from .table_options import table_options

_SHARES, _SAVED = "of the time", "saved by half"


@click.command(short_help="Compare ways to come back after a failure.")
@table_options
@ranks_option
@free_job_options
def restart(common: Common, ranks: int, **options: Any) -> int:
    """What each way to come back takes after each class of failures, the share of the time that each piece costs with
    the levels and the cadence that are advised, and what a piece that takes half as long would save.
    """
    job = make_job(common.read_state(), common.read_machine(), ranks, options)
    with status_console().status("") as status:
        chosen = find_advice(job, 0.0, lambda text: status.update(f"judging: {text}"), wanted_of(options)).chosen
        found = compare(chosen)
    if common.csv_path is not None:
        write_csv(common.csv_path, [row for each in found for row in rows_of(each)])
    if common.report_path is not None:
        write_restarts(common.report_path, chosen, found, command_line())
    if common.as_json:
        print_json(document(chosen, found))
        return GOOD
    out = console()
    out.print(heading(job))
    for note in what_if(job.machine, job.nodes):
        out.print(note, soft_wrap=True)
    every = " / ".join(show_seconds(chosen.cadence.interval_s(cost.name)) for cost in chosen.costs)
    out.print(f"as advised: {describe(chosen.job)}, every {every}", soft_wrap=True)
    mode = job.machine.restart.mode
    out.print(_after_table(found, mode))
    title = "share of the time, and what would be saved of it if a piece took half as long"
    out.print(_shares_table(title, found, mode))
    for way in WAYS.values():
        out.print(f"- {way.name}: {way.words}", soft_wrap=True)
    return GOOD


def document(chosen: Choice, found: Sequence[Comparison]) -> dict[str, Any]:
    """The comparison as JSON."""
    job = chosen.job
    return {
        "format": "deeppart-sim-restart",
        "version": 1,
        "state": describe_state(job),
        "machine": job.machine.name,
        "restart_mode": job.machine.restart.mode,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "notes": what_if(job.machine, job.nodes),
        "levels": describe(job),
        "cadence": {"period_s": chosen.cadence.period_s, "every": dict(chosen.cadence.every)},
        "ways": [_document(each) for each in found],
    }


def _document(each: Comparison) -> dict[str, Any]:
    after = {
        kind: {
            "failures_per_day": back.failures_per_s * DAY_S,
            "pieces_s": dict(back.pieces),
            "total_s": back.total_s,
            "replay_s": back.replay_s,
        }
        for kind, back in each.after.items()
    }
    lost = {"lost": each.waste.total, "shares": dict(each.shares), "saved_by_half": dict(each.saved)}
    return {"way": each.way, "what": WAYS[each.way].words, "after": after} | lost


def rows_of(each: Comparison) -> list[dict[str, Any]]:
    """A way as rows: of each class of failures in seconds, and two of shares of the time."""
    rows: list[dict[str, Any]] = []
    for kind, back in each.after.items():
        seconds = {part: back.pieces.get(part, 0.0) for part in OF_ONE} | {REPLAY: back.replay_s, WRITING: 0.0}
        rows.append(
            {"way": each.way, "row": kind, "unit": "s", "failures_per_day": back.failures_per_s * DAY_S}
            | seconds
            | {"back": back.total_s}
        )
    for name, values in ((_SHARES, each.shares), (_SAVED, each.saved)):
        back_again = sum(values[part] for part in OF_ONE)
        rows.append(
            {"way": each.way, "row": name, "unit": "share", "failures_per_day": ""}
            | {part: values[part] for part in PARTS}
            | {"back": back_again}
        )
    return rows


# --- showing ----------------------------------------------------------------------------------------------------------


def _after_table(found: Sequence[Comparison], mode: str) -> Table:
    head, *rows = after_rows(found)
    listing = table("after one failure; replay: work that is done again, on average", head, left=2)
    before = rows[0][0] if rows else ""
    for row in rows:
        if row[0] != before:
            listing.add_section()
        before = row[0]
        listing.add_row(*row, style=_style(row[0], mode))
    return listing


def _shares_table(title: str, found: Sequence[Comparison], mode: str) -> Table:
    head, *rows = share_rows(found)
    listing = table(title, head, left=2)
    for of_time, saved in zip(rows[::2], rows[1::2], strict=True):
        style = _style(of_time[0], mode)
        listing.add_row(*of_time, style=style)
        listing.add_row("", *saved[1:], style=style)
        listing.add_section()
    return listing


def _style(way: str, mode: str) -> str:
    """The machine's own way stands out."""
    return "bold green" if way == mode else ""
