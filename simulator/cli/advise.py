"""``deeppart-sim advise``: which levels, how often, which redundancy."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.model import LEVELS
from deeppart.model.units import show_bytes, show_seconds, show_share

from ..advise.choose import Advice, Choice, describe, least_restart, loss_of, shown
from ..advise.choose import advise as compare
from ..advise.text import bill_of, config_toml, in_a_sentence, reasons, what_if
from ..budget.bill import missing
from ..budget.space import drive_years
from ..campaign.failures import Scheduling
from ..report.advice_charts import advice_chart
from ..report.page import Contents, write_page
from .budget import bill_document, bill_row, bill_table, known, space_document
from .command_line import command_line
from .consoles import console, status_console, table
from .options import (
    Common,
    common_options,
    free_job_options,
    make_job,
    print_json,
    ranks_option,
    read_time,
    refuse_seed,
    wanted_of,
    write_csv,
)
from .parameters import FiniteRange, NewFile, no_effect
from .restart_mode import coming_back, restart_mode_option
from .scale import describe_state, heading
from .traces import preemption_options


@click.command(short_help="Advise on levels, cadence and redundancy.")
@common_options
@ranks_option
@click.option(
    "--step-time",
    metavar="TIME",
    help="Length of a training step, at each of which the script calls checkpoint(); cadences are then in steps.",
)
@click.option(
    "--mtbf-factor",
    type=FiniteRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor for all times between failures.",
)
@click.option(
    "--config",
    "config_path",
    type=NewFile(),
    metavar="FILE",
    help="Write the advice as a deeppart.toml; a file of that name is replaced.",
)
@preemption_options
@restart_mode_option
@free_job_options
def advise(
    common: Common,
    ranks: int,
    scheduling: Scheduling,
    step_time: str | None,
    mtbf_factor: float,
    config_path: Path | None,
    restart_mode: str | None,
    **options: Any,
) -> int:
    """The cadence of each level, partner copies or parity and its group, compression: what wastes least, and why."""
    refuse_seed(common)
    if scheduling.notice_s and math.isinf(scheduling.preemption_s):
        raise no_effect("--notice", "the job never has to make room", "give --preemption, too, or leave it out")
    job = make_job(common.read_state(), coming_back(common.read_machine(), restart_mode), ranks, options)
    if mtbf_factor != 1.0:
        job = replace(job, machine=job.machine.with_failures(mtbf_factor))
    step_s = 0.0 if step_time is None else read_time(step_time, "--step-time")
    with status_console().status("") as status:
        advice = compare(job, step_s, lambda text: status.update(f"judging: {text}"), wanted_of(options), scheduling)
    text = config_toml(advice)
    if config_path is not None:
        config_path.write_text(text, encoding="utf-8")
    if common.csv_path is not None:
        write_csv(common.csv_path, [row_of(choice) for choice in advice.choices])
    if common.png_path is not None:
        advice_chart(advice).save(common.png_path)
    if common.report_path is not None:
        write_page(common.report_path, advice.chosen.job, Contents(advice=advice, command=command_line()), common.seed)
    if common.as_json:
        print_json(document(advice, text))
        return GOOD
    out = console()
    out.print(in_a_sentence(advice.chosen), style="bold", soft_wrap=True)
    out.print(heading(job))
    for note in what_if(job.machine, job.nodes):
        out.print(note, soft_wrap=True)
    out.print(_table(advice))
    for line in reasons(advice):
        out.print(f"- {line}", soft_wrap=True)
    out.print(bill_table(bill_of(advice.chosen), "in 30 days of this, as advised"))
    for line in missing(job.machine):
        out.print(f"- {line}", soft_wrap=True)
    out.print(_sensitivity(advice))
    if config_path is None:
        out.print("\ndeeppart.toml", style="bold")
        out.print(text)
    else:
        out.print(f"written: {config_path}")
    return GOOD


def document(advice: Advice, config: str) -> dict[str, Any]:
    """The advice as JSON."""
    job = advice.chosen.job
    return {
        "format": "deeppart-sim-advice",
        "version": 1,
        "state": describe_state(job),
        "machine": job.machine.name,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "notes": what_if(job.machine, job.nodes),
        "restart_mode": job.machine.restart.mode,
        "sentence": in_a_sentence(advice.chosen),
        "advised": row_of(advice.chosen),
        "flush_share_binds": advice.unshared is not None,
        "choices": [row_of(choice) for choice in advice.choices],
        "front": [row_of(choice) for choice in advice.front],
        "too_large": dict(advice.too_large),
        "bill": bill_document(bill_of(advice.chosen)),
        "space": space_document(
            job.machine, advice.chosen.space, advice.chosen.node_daily_bytes, advice.chosen.drained_daily_bytes
        ),
        "reasons": reasons(advice),
        "sensitivity": [asdict(each) for each in advice.sensitivity],
        "ranks_per_node": {
            str(width): {"blocked_s": blocked, "complete_s": complete}
            for width, (blocked, complete) in advice.by_ranks_per_node.items()
        },
        "config": config,
    }


def row_of(choice: Choice) -> dict[str, Any]:
    """A choice as one flat row."""
    waste = choice.waste
    row: dict[str, Any] = {
        "levels": describe(choice.job),
        "waste": waste.total,
        "waste_cost": waste.cost,
        "waste_rework": waste.rework,
        "waste_restart": waste.restart,
        "period_s": choice.cadence.period_s,
        "blocked_s": choice.blocked_s,
        "work_per_failure_s": choice.work_s,
        "back_per_failure_s": choice.back_s,
        "idle": choice.idle,
        "node_bytes": choice.node_bytes,
        "node_daily_bytes": choice.node_daily_bytes,
        "drained_daily_bytes": choice.drained_daily_bytes,
        "file_system_bytes": choice.space.file_system_bytes,
        "drive_years": known(drive_years(choice.job.machine, choice.node_daily_bytes)),
    }
    row |= bill_row(bill_of(choice))
    for level in LEVELS:
        row[f"every_{level}"] = choice.cadence.every.get(level, 0)
    return row


def _table(advice: Advice) -> Table:
    names = [
        "levels",
        "lost",
        "writing",
        "redone",
        "back slower",
        "wasted",
        "levels every",
        "on a node",
        "written/day",
        "flushed/day",
    ]
    title = "> advised, and choices that no other one is as good as; lost: what another choice could give back"
    found = table(title, names)
    least = least_restart(advice.front)
    for choice in shown(advice):
        cadence, waste = choice.cadence, choice.waste
        every = " / ".join(show_seconds(cadence.interval_s(cost.name)) for cost in choice.costs)
        parts = (loss_of(choice, least), waste.cost, waste.rework, waste.restart - least, waste.total)
        shares = [show_share(max(0.0, share)) for share in parts]
        mark, style = ("> ", "bold green") if choice is advice.chosen else ("", "")
        sizes = [choice.node_bytes, choice.node_daily_bytes, choice.drained_daily_bytes]
        found.add_row(mark + describe(choice.job), *shares, every, *map(show_bytes, sizes), style=style)
    return found


def _sensitivity(advice: Advice) -> Table:
    found = table(
        "if failures come at another rate",
        ["time between failures", "wasted as advised", "wasted at best", "a call then every"],
    )
    for each in advice.sensitivity:
        cells = [f"{each.factor:g} times", show_share(each.kept), show_share(each.adapted), show_seconds(each.period_s)]
        found.add_row(*cells)
    return found
