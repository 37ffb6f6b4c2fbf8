"""``deeppart-sim advise``: which levels, how often, which redundancy; for one job, or for several beside each other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from deeppart.errors import ConfigError
from deeppart.model import LEVELS

from ..advise.choose import Advice, Choice, describe
from ..advise.choose import advise as advice_for
from ..advise.compare import Side, side_of
from ..advise.text import bill_of, config_toml, in_a_sentence, reasons, what_if
from ..budget.bill import missing
from ..budget.space import drive_years, space_document
from ..report.charts import advice_chart, comparison_charts, together
from ..report.page import comparison_sections, job_page, page
from ..report.tables import advice_table, bill_table, sensitivity_table, sides_table
from ..timing.stages import Job
from .options import (
    CHECKPOINTS,
    OPTIONS,
    OUTPUT,
    SOURCE,
    Asked,
    NewFile,
    command,
    command_line,
    given,
    no_effect,
    option,
)
from .output import Shown, about, bold, emit, flat, job_document, state_document, status_console

#: What describes a job: what --with takes.
_JOB = (
    *SOURCE, "ranks", "step-time", "mtbf-factor", "preemption", "notice", "restart-mode", "strategy", *CHECKPOINTS,
)  # fmt: skip
_settings = click.Command("--with", params=[OPTIONS[name] for name in _JOB], add_help_option=False)
_BASE = "base"


@command(
    "Advise on levels, cadence and redundancy.",
    *_JOB, "seed", *OUTPUT,
    option("--config", "config_path", type=NewFile(), metavar="FILE",
           help="Write the advice as a deeppart.toml; a file of that name is replaced."),
    option("--with", "variants", multiple=True, metavar="OPTIONS",
           help="Compare: also a job with these options in place of those outside, such as --with '--machine llama3'; "
           "may be repeated."),
)  # fmt: skip
def advise(asked: Asked) -> int:
    """The cadence of each level, partner copies or parity and its group, compression: what wastes least, and why.

    With --with, how long a checkpoint takes, and what is advised and lost, for the job and for the same job with other
    options.
    """
    asked.refuse_seed()
    if asked.variants:
        return _compare(asked)
    job, step_s = _job(asked), asked.seconds("step_time") or 0.0
    with status_console().status("") as status:
        advice = advice_for(
            job, step_s, lambda text: status.update(f"judging: {text}"), asked.wanted(), asked.scheduling()
        )
    config = config_toml(advice)
    if asked.config_path is not None:
        asked.config_path.write_text(config, encoding="utf-8")

    def shown() -> Shown:
        yield bold(in_a_sentence(advice.chosen))
        yield from about(job)
        yield advice_table(advice)
        yield from (f"- {line}" for line in reasons(advice))
        yield bill_table(bill_of(advice.chosen), "in 30 days of this, as advised")
        yield from (f"- {line}" for line in missing(job.machine))
        yield sensitivity_table(advice)
        if asked.config_path is None:
            yield bold("\ndeeppart.toml")
            yield config
        else:
            yield f"written: {asked.config_path}"

    return emit(
        asked.values, lambda: _document(advice, config), shown,
        rows=lambda: [row_of(choice) for choice in advice.choices],
        chart=lambda: advice_chart(advice),
        page=lambda: job_page(advice.chosen.job, command_line(), asked.seed, advice=advice),
    )  # fmt: skip


def _job(asked: Asked) -> Job:
    if asked.notice is not None and asked.preemption is None:
        raise no_effect("--notice", "the job never has to make room", "give --preemption, too, or leave it out")
    return asked.job()


def _document(advice: Advice, config: str) -> dict[str, Any]:
    chosen = advice.chosen
    widths = advice.by_ranks_per_node.items()
    return job_document("advice", chosen.job) | {
        "strategy": chosen.job.strategy,
        "sentence": in_a_sentence(chosen),
        "advised": row_of(chosen),
        "flush_share_binds": advice.unshared is not None,
        "choices": [row_of(choice) for choice in advice.choices],
        "front": [row_of(choice) for choice in advice.front],
        "too_large": advice.too_large,
        "bill": bill_of(chosen).document(),
        "space": space_document(
            chosen.job.machine, chosen.space, chosen.node_daily_bytes, chosen.drained_daily_bytes
        ),
        "reasons": reasons(advice),
        "sensitivity": advice.sensitivity,
        "ranks_per_node": {width: {"blocked_s": one, "complete_s": other} for width, (one, other) in widths},
        "config": config,
    }  # fmt: skip


_OF_CHOICE = (
    "blocked_s", "idle", "node_bytes", "node_daily_bytes",
    "drained_daily_bytes",
)  # fmt: skip


def row_of(choice: Choice) -> dict[str, Any]:
    """A choice as one flat row."""
    waste = choice.waste
    row = {"levels": describe(choice.job), "waste": waste.total}
    row |= {f"waste_{name}": share for name, share in asdict(waste).items()}
    row |= {"period_s": choice.cadence.period_s} | {name: getattr(choice, name) for name in _OF_CHOICE}
    row |= {"work_per_failure_s": choice.work_s, "back_per_failure_s": choice.back_s}
    row |= {"file_system_bytes": choice.space.file_system_bytes}
    row |= {"drive_years": drive_years(choice.job.machine, choice.node_daily_bytes)} | bill_of(choice).row()
    return flat(row | {f"every_{level}": choice.cadence.every.get(level, 0) for level in LEVELS})


# --- jobs beside each other -------------------------------------------------------------------------------------------


def _compare(asked: Asked) -> int:
    for name in ("config_path", "seed"):
        if given(name):
            raise no_effect(f"--{name.removesuffix('_path')}", "--with compares jobs, and only shows them")
    outside = click.get_current_context()
    base = {each.name: asked.values[str(each.name)] for each in _settings.params}
    contexts, seen = [(_BASE, outside)], [base]
    for text in asked.variants:
        changed = _changed(outside, text, base)
        if changed.params in seen:
            raise no_effect(f"--with {text!r}", "another of the compared jobs has the same options")
        seen.append(changed.params)
        contexts.append((text, changed))
    sides = []
    with status_console().status("") as status:
        for label, context in contexts:
            with context.scope(cleanup=False):
                each = Asked(context.params)
                job, wanted, scheduling = _job(each), each.wanted(), each.scheduling()
                step_s = each.seconds("step_time") or 0.0
            status.update(label)
            sides.append(side_of(label, job, wanted, step_s, scheduling))

    def shown() -> Shown:
        for side in sides:
            yield from (f"{side.label}: {note}" for note in what_if(side.job.machine, side.job.nodes))
        yield sides_table(sides)

    return emit(
        asked.values,
        lambda: {"format": "deeppart-sim-comparison", "version": 1, "jobs": _side_documents(sides)},
        shown,
        rows=lambda: [_side_row(side) for side in sides],
        chart=lambda: together(comparison_charts(sides)),
        page=lambda: page(f"{len(sides)} jobs compared", comparison_sections(sides), command_line()),
    )


def _changed(outside: click.Context, text: str, base: dict[Any, Any]) -> click.Context:
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


_ADVISED = (
    "period_s", *(f"every_{level}" for level in LEVELS), "waste", "waste_cost", "waste_rework", "waste_restart",
    "node_bytes", "node_daily_bytes", "drained_daily_bytes",
)  # fmt: skip


def _side_row(side: Side) -> dict[str, Any]:
    """A side as one flat row; without advice where nothing fails."""
    job = side.job
    row: dict[str, Any] = {"label": side.label, "state": job.state.name, "machine": job.machine.name}
    row |= {"ranks": job.ranks, "nodes": job.nodes, "strategy": job.strategy, "levels": describe(job)}
    row |= {"blocked_s": side.blocked_s} | {f"until_{level}_s": side.complete_s.get(level) for level in LEVELS}
    found = {} if side.choice is None else row_of(side.choice)
    return row | {key: found.get(key) for key in _ADVISED}


def _side_documents(sides: Sequence[Side]) -> list[dict[str, Any]]:
    return [
        _side_row(side) | {"state": state_document(side.job.state), "notes": what_if(side.job.machine, side.job.nodes)}
        for side in sides
    ]
