"""``deeppart-sim compare``: two or more machines, states or settings beside each other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.errors import ConfigError
from deeppart.model import LEVELS
from deeppart.partition import STRATEGIES

from ..advise.choose import Wanted, describe
from ..advise.compare import Side, side_of
from ..advise.text import what_if
from ..report.compare_charts import comparison_charts, together
from ..report.compare_page import side_rows, write_comparison
from ..timing.stages import Job
from .advise import advise, row_of
from .command_line import command_line
from .consoles import console, status_console, table
from .options import DEFAULT_SEED, Common, Output, make_job, output_options, print_json, read_time, wanted_of, write_csv
from .parameters import OneOf, no_effect
from .restart_mode import coming_back
from .scale import describe_state

#: Options of ``advise`` that describe a job, by the names of its arguments.
_OF_ADVISE = (
    "state", "source", "machine", "ranks", "ranks_per_node", "step_time", "mtbf_factor", "compression", "capture",
    "partner", "parity", "local", "files", "flush_bandwidth", "flush_share", "restart_mode",
)  # fmt: skip
_STRATEGY = click.Option(
    ["--strategy"], default="deeppart", type=OneOf(STRATEGIES), show_default=True, help="Who saves what."
)
#: What --with takes.
_settings = click.Command(
    "--with", params=[*(each for each in advise.params if each.name in _OF_ADVISE), _STRATEGY], add_help_option=False
)
BASE = "base"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A job as it is asked for."""

    label: str
    job: Job
    wanted: Wanted
    step_s: float


@click.command(short_help="Compare machines, states or settings.")
@click.option(
    "--with",
    "variants",
    multiple=True,
    required=True,
    metavar="OPTIONS",
    help="Also a job with these options in place of those outside, such as --with '--machine llama3'; may be repeated.",
)
@output_options
@click.pass_context
def compare(ctx: click.Context, /, output: Output, variants: tuple[str, ...], **base: Any) -> int:
    """How long a checkpoint takes, and what is advised and lost, for a job and for the same job with other options.

    The first line, "base", is the job of the options outside --with. Levels, redundancy and compression that are left
    out are chosen for each job as `advise` chooses them.
    """
    settings = [_read(ctx, BASE, "", base)]
    seen = [base]
    for text in variants:
        changed = _changed(ctx, text, base)
        if changed.params in seen:
            raise no_effect(f"--with {text!r}", "another of the compared jobs has the same options")
        seen.append(changed.params)
        settings.append(_read(changed, text, text, changed.params))
    with status_console().status("") as status:
        sides = [
            side_of(
                each.label, each.job, each.wanted, each.step_s,
                lambda words, label=each.label: status.update(f"{label}: {words}"),  # type: ignore[misc]
            )
            for each in settings
        ]  # fmt: skip
    if output.csv_path is not None:
        write_csv(output.csv_path, [side_row(side) for side in sides])
    if output.png_path is not None:
        together(comparison_charts(sides)).save(output.png_path)
    if output.report_path is not None:
        write_comparison(output.report_path, sides, command_line())
    if output.as_json:
        print_json(document(sides))
    else:
        out = console()
        for side in sides:
            for note in what_if(side.job.machine, side.job.nodes):
                out.print(f"{side.label}: {note}", soft_wrap=True)
        out.print(_table(sides))
    return GOOD


compare.params[:0] = _settings.params


def document(sides: Sequence[Side]) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "format": "deeppart-sim-comparison",
        "version": 1,
        "jobs": [
            side_row(side) | {"state": describe_state(side.job), "notes": what_if(side.job.machine, side.job.nodes)}
            for side in sides
        ],
    }


def side_row(side: Side) -> dict[str, Any]:
    """A side as one flat row, the same keys for all; empty where nothing is advised since nothing fails."""
    job = side.job
    row: dict[str, Any] = {
        "label": side.label,
        "state": job.state.name,
        "machine": job.machine.name,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "strategy": job.strategy,
        "levels": describe(job),
        "blocked_s": side.blocked_s,
    }
    row |= {f"until_{level}_s": side.complete_s.get(level) for level in LEVELS}
    found = {} if side.choice is None else row_of(side.choice)
    return row | {key: found.get(key) for key in _ADVISED}


_ADVISED = (
    "period_s", *(f"every_{level}" for level in LEVELS), "waste", "waste_cost", "waste_rework", "waste_restart",
    "node_bytes", "node_daily_bytes", "drained_daily_bytes",
)  # fmt: skip


def _changed(outside: click.Context, text: str, base: dict[str, Any]) -> click.Context:
    """The options of one --with, with those outside where it has none of its own."""
    try:
        found = _settings.make_context("--with", shlex.split(text))
    except (ValueError, click.UsageError) as error:
        words = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise ConfigError(
            "impossible value for --with", expected="options that describe a job, such as '--machine llama3'",
            found=f"{text!r}: {words}", where="--with",
        ) from None  # fmt: skip
    for name, value in base.items():
        if found.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            found.params[name] = value
            source = outside.get_parameter_source(name)
            if source is not None:
                found.set_parameter_source(name, source)
    return found


def _read(context: click.Context, label: str, text: str, options: dict[str, Any]) -> _Setting:
    common = Common(
        False, None, None, None, options["state"], options["source"], options["machine"], DEFAULT_SEED
    )  # fmt: skip
    with context.scope(cleanup=False):
        job = make_job(
            common.read_state(), coming_back(common.read_machine(), options["restart_mode"]), options["ranks"], options
        )
        wanted = wanted_of(options)
    machine = job.machine if options["mtbf_factor"] == 1.0 else job.machine.with_failures(options["mtbf_factor"])
    step_s = 0.0 if options["step_time"] is None else read_time(options["step_time"], "--step-time")
    return _Setting(label, replace(job, machine=machine, strategy=options["strategy"]), wanted, step_s)


def _table(sides: Sequence[Side]) -> Table:
    head, *rows = side_rows(sides)
    found = table("each with what is advised for it", head, left=2)
    for row in rows:
        found.add_row(*row)
    return found
