"""``deeppart-sim advise``: which levels, how often, which redundancy; for one job, or for several beside each other."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

import click

from deeppart.errors import ConfigError
from deeppart.model import LEVELS

from ..advise.choose import Advice, Choice, describe
from ..advise.choose import advise as advice_for
from ..advise.text import bill_of, config_toml, in_a_sentence, reasons, what_if
from ..budget import drive_years, space_document
from ..report.blocks import Result, Section
from ..report.sections import advice_section, job_sections, jobs_section, timeline_section
from ..timing.stages import Job
from .options import CHECKPOINTS, OPTIONS, OUTPUT, PICTURE, SOURCE, Asked, NewFile, command, given, no_effect, option
from .output import flat, job_result

#: What describes a job: what --with takes.
_JOB = (
    *SOURCE, "ranks", "step-time", "mtbf-factor", "preemption", "notice", "restart-mode", "strategy", *CHECKPOINTS,
)  # fmt: skip
_settings = click.Command("--with", params=[OPTIONS[name] for name in _JOB], add_help_option=False)
_BASE = "base"


@command(
    "Advise on levels, cadence and redundancy.",
    *_JOB, *OUTPUT, PICTURE,
    option("--config", "config_path", type=NewFile(), metavar="FILE",
           help="Write the advice as a deeppart.toml; a file of that name is replaced."),
    option("--with", "variants", multiple=True, metavar="OPTIONS",
           help="Compare: also a job with these options in place of those outside, such as --with '--machine llama3'; "
           "may be repeated."),
)  # fmt: skip
def advise(asked: Asked) -> Result:
    """The cadence of each level, partner copies or parity and its group, compression: what wastes least, and why.

    With --with, how long a checkpoint takes, and what is advised and lost, for the job and for the same job with other
    options.
    """
    if asked.variants:
        return _compare(asked)
    job, step_s = _job(asked), asked.seconds("step_time") or 0.0
    advice = advice_for(job, step_s, asked.wanted(), asked.scheduling())
    if asked.config_path is not None:
        asked.config_path.write_text(config_toml(advice), encoding="utf-8")
    return job_result(
        "advice", advice.chosen.job, _document(advice), [advice_section(advice)],
        rows=[row_of(choice) for choice in advice.choices],
        page=lambda found: job_sections(advice.chosen.job, found, advice),
    )  # fmt: skip


def _job(asked: Asked) -> Job:
    if asked.notice is not None and asked.preemption is None:
        raise no_effect("--notice", "the job never has to make room", "give --preemption, too, or leave it out")
    return asked.job()


def _document(advice: Advice) -> dict[str, Any]:
    chosen = advice.chosen
    return {
        "strategy": chosen.job.strategy,
        "sentence": in_a_sentence(chosen),
        "advised": row_of(chosen),
        "choices": [row_of(choice) for choice in advice.choices],
        "front": [row_of(choice) for choice in advice.front],
        "too_large": advice.too_large,
        "bill": bill_of(chosen).document(),
        "space": space_document(
            chosen.job.machine, chosen.space, chosen.node_daily_bytes, chosen.drained_daily_bytes
        ),
        "reasons": reasons(advice),
        "sensitivity": advice.sensitivity,
        "config": config_toml(advice),
    }  # fmt: skip


def row_of(choice: Choice) -> dict[str, Any]:
    """A choice as one flat row."""
    waste = choice.waste
    row = {"levels": describe(choice.job), "waste": waste.total}
    row |= {f"waste_{name}": share for name, share in asdict(waste).items()}
    row |= {"period_s": choice.cadence.period_s, "blocked_s": choice.blocked_s, "idle": choice.idle}
    row |= {"node_bytes": choice.space.on_node, "node_daily_bytes": choice.node_daily_bytes}
    row |= {"drained_daily_bytes": choice.drained_daily_bytes}
    row |= {"work_per_failure_s": choice.work_s, "back_per_failure_s": choice.back_s}
    row |= {"file_system_bytes": choice.space.file_system_bytes}
    row |= {"drive_years": drive_years(choice.job.machine, choice.node_daily_bytes)} | bill_of(choice).row()
    return flat(row | {f"every_{level}": choice.cadence.every.get(level, 0) for level in LEVELS})


# --- jobs beside each other -------------------------------------------------------------------------------------------


def _compare(asked: Asked) -> Result:
    if given("config_path"):
        raise no_effect("--config", "--with compares jobs, and only shows them")
    outside = click.get_current_context()
    base = {each.name: asked.values[str(each.name)] for each in _settings.params}
    contexts = {_BASE: outside} | {text: _changed(outside, text, base) for text in asked.variants}
    found: dict[str, Choice] = {}
    for label, context in contexts.items():
        asked.status.update(label)
        with context.scope(cleanup=False):
            each = Asked(context.params)
            job, step_s = _job(each), each.seconds("step_time") or 0.0
            found[label] = advice_for(job, step_s, each.wanted(), each.scheduling()).chosen
    notes = [f"{label}: {note}" for label, each in found.items() for note in what_if(each.job.machine, each.job.nodes)]
    rows = [_job_row(label, choice) for label, choice in found.items()]
    document = {"format": "deeppart-sim-comparison", "version": 1, "jobs": rows}
    timelines = [
        Section(f"{label}: one checkpoint", timeline_section(choice.job).blocks) for label, choice in found.items()
    ]
    return Result(
        f"{len(found)} jobs compared", document, [jobs_section(found)], rows, notes=notes,
        page=lambda found: [*found, *timelines],
    )  # fmt: skip


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


def _job_row(label: str, choice: Choice) -> dict[str, Any]:
    """A job as one flat row, with what is advised for it."""
    job = choice.job
    row = {"label": label, "state": job.state.name, "machine": job.machine.name, "ranks": job.ranks, "nodes": job.nodes}
    row |= {f"until_{level}_s": choice.complete_s.get(level) for level in LEVELS}
    return row | {"strategy": job.strategy} | row_of(choice)
