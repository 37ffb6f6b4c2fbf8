"""``deeppart-sim campaign``: a run of weeks with failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.model.spelling import meant_todo
from deeppart.model.units import show_bytes, show_seconds, show_share
from deeppart.plan.interval import best

from ..advise.choose import Advice, Wanted, advise, describe
from ..advise.text import what_if
from ..budget.bill import LABELS, LEAVING, bill_of_run, daily_bytes, missing, space_of_run
from ..budget.space import space_lines
from ..campaign.costs import NOTHING, followed, level_costs, often_enough, training_s
from ..campaign.failures import Failure, Scheduling, Size, need_failures
from ..campaign.outcomes import Estimate, RunResult, Summary, show_number, summarize
from ..campaign.plan import LIMIT_S, Cadences, Planned, effort_s, too_long, usual_spares
from ..campaign.seeds import WORTH_S, cores, run_seeds
from ..machine.record import DAY_S
from ..report.charts import campaign_chart
from ..report.page import Contents, write_page
from ..timing.stages import Job
from .budget import bill_document, bill_row, bill_table, space_document
from .command_line import command_line
from .consoles import console, status_console, table
from .options import (
    Common,
    common_options,
    job_options,
    make_job,
    print_json,
    ranks_option,
    read_time,
    wanted_of,
    write_csv,
)
from .parameters import FiniteRange, given, no_effect
from .restart_mode import coming_back, restart_mode_option
from .scale import describe_state, heading
from .traces import Happenings, happenings_options, other_rates

_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity", NOTHING: "nothing: from the beginning"}


@click.command(short_help="Simulate a run of weeks with failures.")
@common_options
@ranks_option
@click.option(
    "--days", type=FiniteRange(min=0, min_open=True), default=30.0, show_default=True, help="Length of the run."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Number of runs, one per seed."
)
@click.option("--every", metavar="TIME", help="Training between two calls, such as 10min; the best one if left out.")
@click.option(
    "--levels", metavar="LEVEL=N,...", help="Each level is written at every N-th call; the best N if left out."
)
@click.option(
    "--spares", type=click.IntRange(min=0), help="Spare nodes; if left out, as many as are usually under repair."
)
@click.option("--elastic", is_flag=True, help="Continue with fewer nodes while no spare node is ready.")
@click.option(
    "--advised", is_flag=True, help="What `advise` advises for this job: levels, redundancy, compression and cadence."
)
@happenings_options
@click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Runs at a time; if left out, as many as there are cores, if it pays."
)
@click.option("--anyway", is_flag=True, help="Simulate it even if that takes more than an hour.")
@restart_mode_option
@job_options
def campaign(
    common: Common,
    ranks: int,
    days: float,
    seeds: int,
    every: str | None,
    levels: str | None,
    spares: int | None,
    elastic: bool,
    advised: bool,
    happenings: Happenings,
    jobs: int | None,
    anyway: bool,
    restart_mode: str | None,
    **options: Any,
) -> int:
    """Useful time, lost work, time blocked, recoveries by level and bytes of a long run, over several seeds."""
    job = make_job(common.read_state(), coming_back(common.read_machine(), restart_mode), ranks, options)
    advice = _advice(job, wanted_of(options), every, levels, happenings.scheduling) if advised else None
    planned = Planned(job if advice is None else advice.chosen.job)
    job = planned.job
    failures = happenings.failures(Size(job.ranks, job.nodes), days * DAY_S)
    random = job.machine.persistent.others or happenings.scheduling.random
    if failures is not None and not random:
        seeds = _one_seed(common, seeds)
    if every is not None and levels is not None and given("flush_share"):
        raise no_effect("--flush-share", "it limits how often checkpoints are flushed, which --every and --levels give")
    ready = usual_spares(planned) if spares is None else spares
    if advice is None:
        cadences = _cadences(planned, wanted_of(options), every, levels, days * DAY_S, ready, elastic)
        _check_protection(options, cadences)
    else:
        chosen = advice.chosen
        period_s = training_s(chosen.costs, chosen.cadence)
        cadences = Cadences(period_s, followed(chosen.cadence), days * DAY_S, spares=ready, elastic=elastic)
    cadences = replace(cadences, scheduling=happenings.scheduling)
    left_out = advised or every is None or levels is None or spares is None
    other = other_rates(job, failures, days * DAY_S) if left_out and failures is not None else ""
    jobs = _at_a_time(planned, cadences, seeds, failures, jobs, anyway=anyway)
    numbers = range(common.seed, common.seed + seeds)
    results = simulate(planned, cadences, numbers, failures, jobs=jobs, shown=not common.as_json)
    summary = summarize(results)
    if common.csv_path is not None:
        bills = [bill_of_run(planned, cadences, summarize([result])) for result in results]
        rows = [row_of(result) | bill_row(each) for result, each in zip(results, bills, strict=True)]
        write_csv(common.csv_path, rows)
    if common.png_path is not None:
        campaign_chart(summary).save(common.png_path)
    if common.report_path is not None:
        contents = Contents(summary=summary, cadences=cadences, advice=advice, command=command_line())
        write_page(common.report_path, cadences.of(job), contents, common.seed)
    if common.as_json:
        found = document(job, cadences, results, summary) | _budget(planned, cadences, summary)
        print_json(found | {"notes": [*found["notes"], *([other] if other else [])]})
    else:
        out = console()
        out.print(heading(job))
        for note in what_if(job.machine, job.nodes, cadences.spares):
            out.print(note, soft_wrap=True)
        if other:
            out.print(other, soft_wrap=True)
        out.print(f"{describe(cadences.of(job))}: {cadences}", soft_wrap=True)
        out.print(_table(summary))
        out.print(bill_table(bill_of_run(planned, cadences, summary), "what the run takes, all of its nodes together"))
        for line in _spending(planned, cadences, summary):
            out.print(f"- {line}", soft_wrap=True)
    return GOOD


def simulate(
    planned: Planned,
    cadences: Cadences,
    seeds: range,
    trace: tuple[Failure, ...] | None = None,
    *,
    jobs: int = 1,
    shown: bool = True,
) -> list[RunResult]:
    """One run per seed, so many at a time, with a bar where someone is looking."""
    screen = status_console()
    bar = Progress(
        TextColumn("{task.completed:.0f} of {task.total:.0f} runs"), BarColumn(), TimeRemainingColumn(),
        console=screen, transient=True, disable=not (shown and screen.is_terminal),
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=float(len(seeds)))
        return run_seeds(planned, cadences, seeds, trace, lambda runs: bar.update(task, completed=runs), processes=jobs)


def _cadences(
    planned: Planned, wanted: Wanted, every: str | None, levels: str | None, wall_s: float, spares: int, elastic: bool
) -> Cadences:
    on = list(planned.on(planned.nodes).times.complete())
    if every is not None and levels is not None:
        period = read_time(every, "--every")
        return Cadences(period, _read_levels(levels, on), wall_s, spares=spares, elastic=elastic)
    need_failures(planned.job.machine, Size(planned.job.ranks, planned.nodes))
    costs = level_costs(planned)
    found = wanted.kept(costs, often_enough(costs, best(costs)))
    period = training_s(costs, found) if every is None else read_time(every, "--every")
    counts = followed(found) if levels is None else _read_levels(levels, on)
    return Cadences(period, counts, wall_s, spares=spares, elastic=elastic)


def _advice(job: Job, wanted: Wanted, every: str | None, levels: str | None, scheduling: Scheduling) -> Advice:
    """What is advised for a job."""
    if every is not None or levels is not None:
        raise ConfigError(
            "--advised and a cadence",
            expected="--advised alone, or --every and --levels",
            found="--advised, and " + ("--every" if every is not None else "--levels"),
            where="--advised",
        )
    return advise(job, wanted=wanted, scheduling=scheduling)


def _read_levels(text: str, on: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in text.split(","):
        level, _, count = (word.strip() for word in item.partition("="))
        if level not in on or level in found or not (count.isascii() and count.isdigit() and len(count) < 10):
            todo = None if level in on else meant_todo(level, on, "take one of these")
            raise ConfigError(
                "impossible value for --levels",
                expected="LEVEL=N, separated by commas, with levels that are on, each once: " + ", ".join(on),
                found=repr(item),
                where="--levels",
                todo=todo,
            )
        found[level] = int(count)
    local = found.get(Level.LOCAL, 0)
    for level in REDUNDANT_LEVELS:
        if found.get(level) and (not local or found[level] % local):
            raise ConfigError(
                f"{level} protects what the local level has stored, and cannot be written without it",
                expected=f"{level}=N where N is a multiple of that of local, as the library has it",
                found=text,
                where="--levels",
                todo=f"give local=N, and a multiple of it for {level}",
            )
    if not any(found.values()):
        raise ConfigError(
            "a job without checkpoints needs no campaign", expected="a level with N of 1 or more", found=text,
            where="--levels",
        )  # fmt: skip
    return found


def _one_seed(common: Common, seeds: int) -> int:
    """With a trace and no other jobs on the file system nothing is random: one run says it all."""
    why = "with --trace, and no other jobs on the file system ([persistent] others), nothing is random"
    if given("seeds") and seeds > 1:
        raise no_effect("--seeds", why)
    if given("seed"):
        raise no_effect("--seed", why)
    return 1


def _check_protection(options: Mapping[str, Any], cadences: Cadences) -> None:
    """Refuse a protection that is asked for, and that --levels leaves out."""
    wanted = {Level.PARTNER: options["partner"], Level.PARITY: options["parity"], Level.LOCAL: options["local"]}
    for level, is_given in wanted.items():
        if is_given and not cadences.every.get(level):
            raise no_effect(f"--{level}", f"--levels leaves {level} out", f"add {level}=N to --levels, or leave it out")


def _at_a_time(
    planned: Planned,
    cadences: Cadences,
    seeds: int,
    trace: tuple[Failure, ...] | None,
    jobs: int | None,
    *,
    anyway: bool,
) -> int:
    """Runs that are simulated at a time."""
    if jobs is not None and jobs > seeds:
        raise no_effect("--jobs", f"it is more than the {seeds} runs that there are", "take fewer, or more --seeds")
    seconds = seeds * effort_s(planned, cadences, None if trace is None else len(trace))
    at_a_time = jobs or (min(cores(), seeds) if seconds > WORTH_S else 1)
    if not anyway and too_long(seconds / min(at_a_time, cores())):
        raise ConfigError(
            "this campaign takes long to simulate",
            expected=f"at most {show_seconds(LIMIT_S)}",
            found=f"about {show_seconds(seconds / min(at_a_time, cores()))}: {seeds} runs of "
            f"{show_seconds(cadences.wall_s)}, {at_a_time} at a time, a call after every "
            f"{show_seconds(cadences.period_s)} of training",
            where="deeppart-sim campaign",
            todo="take fewer --days or --seeds, a longer --every, or add --anyway",
        )
    return at_a_time


# --- showing ----------------------------------------------------------------------------------------------------------


def document(job: Job, cadences: Cadences, results: list[RunResult], summary: Summary) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "format": "deeppart-sim-campaign",
        "version": 1,
        "state": describe_state(job),
        "machine": job.machine.name,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "notes": what_if(job.machine, job.nodes, cadences.spares),
        "restart_mode": job.machine.restart.mode,
        "cadence": {"period_s": cadences.period_s, "every": dict(cadences.every), "wall_s": cadences.wall_s},
        "courses": [asdict(result) for result in results],
        "summary": asdict(summary),
    }


def row_of(result: RunResult) -> dict[str, Any]:
    """The result of a run as one flat row."""
    row: dict[str, Any] = {"seed": result.seed, "efficiency": result.efficiency}
    row |= {f"{name}_s": getattr(result, f"{name}_s") for name in ("useful", "lost", "slowed")}
    row |= {f"{name.replace(' ', '_')}_s": seconds for name, seconds in result.buckets.items()}
    row |= {"failures": sum(result.failures.values()), "recoveries": sum(result.recoveries.values())}
    return row | {"checkpoints": max(result.checkpoints.values(), default=0), "bytes": sum(result.nbytes.values())}


def _budget(planned: Planned, cadences: Cadences, summary: Summary) -> dict[str, Any]:
    space, written = space_of_run(planned, cadences), daily_bytes(planned, cadences, summary)
    return {
        "bill": bill_document(bill_of_run(planned, cadences, summary)),
        "space": space_document(planned.job.machine, space, *written),
    }


def _spending(planned: Planned, cadences: Cadences, summary: Summary) -> list[str]:
    machine, space = planned.job.machine, space_of_run(planned, cadences)
    lines = [f"no room: {line}; a job would end there" for line in space.too_large]
    return [*lines, *space_lines(machine, space, *daily_bytes(planned, cadences, summary)), *missing(machine)]


def _table(summary: Summary) -> Table:
    title = "one run"
    if summary.seeds > 1:
        title = f"mean of {summary.seeds} runs (95 % confidence interval, Student's t; least and most)"
    found = table(title, ["", "mean", "95 %", "least", "most"])
    for name, label in LABELS.items():
        _row(found, label, summary.shares[name], show_share)
    for name, label in (("leaving", LEAVING), ("queued", "in the queue")):
        if summary.shares[name].most:
            _row(found, label, summary.shares[name], show_share)
    found.add_section()
    for kind, number in summary.failures.items():
        _row(found, f"failures: {kind}", number, show_number)
    for kind, number in summary.ends.items():
        _row(found, f"ended: {kind}", number, show_number)
    if summary.ends:
        _row(found, "of these with everything saved", summary.in_time, show_number)
    for level, number in summary.recoveries.items():
        _row(found, f"came back from {_LEVEL_WORDS.get(level, level)}", number, show_number)
    if summary.grown.most:
        _row(found, "stopped to take nodes in", summary.grown, show_number)
    found.add_section()
    for level, number in summary.checkpoints.items():
        _row(found, f"checkpoints: {level}", number, show_number)
    for level, number in summary.nbytes.items():
        _row(found, f"written: {level}", number, show_bytes)
    return found


def _row(found: Table, label: str, value: Estimate, show: Any) -> None:
    interval = "" if value.low == value.high else f"{show(value.low)} to {show(value.high)}"
    found.add_row(label, show(value.mean), interval, show(value.least), show(value.most))
