"""``deeppart-sim campaign``: a run of weeks with failures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level, meant_todo, show_seconds
from deeppart.plan.interval import best

from ..advise.choose import Advice, advise
from ..budget import bill_of_run, daily_bytes, space_document, space_of_run
from ..campaign.costs import followed, level_costs, often_enough, training_s
from ..campaign.failures import Failure, Scheduling, Waits, failures_from, need_failures
from ..campaign.outcomes import RunResult, summarize
from ..campaign.plan import MOST_EVENTS, Cadences, Planned, events, usual_spares
from ..campaign.seeds import cores, run_seeds
from ..machine.record import DAY_S
from ..report.blocks import Result
from ..report.sections import advice_section, campaign_section, job_sections
from ..timing.stages import Job
from ..traces.record import PREEMPTION
from .options import (
    CHECKPOINTS,
    OUTPUT,
    PICTURE,
    SOURCE,
    Asked,
    FiniteRange,
    command,
    given,
    impossible,
    no_effect,
    option,
    read_time,
)
from .output import job_result

#: Shorter campaigns are over before other processes have begun.
WORTH_EVENTS = 50_000
Trace = tuple[Failure, ...]


@command(
    "Simulate a run of weeks with failures.",
    *SOURCE, *OUTPUT, PICTURE, "ranks",
    option("--seed", type=click.IntRange(min=0), default=1, help="Of random numbers."),
    option("--seeds", type=click.IntRange(min=1), default=10, help="Number of runs, one per seed."),
    option("--days", type=FiniteRange(min=0, min_open=True), default=30.0, help="Length of the run."),
    option("--every", metavar="TIME", help="Training between two calls, such as 10min; the best one if left out."),
    option("--levels", metavar="LEVEL=N,...", help="Each level is written at every N-th call; the best N if left out."),
    option("--spares", type=click.IntRange(min=0),
           help="Spare nodes; if left out, as many as are usually under repair."),
    option("--elastic", is_flag=True, help="Continue with fewer nodes while no spare node is ready."),
    option("--advised", is_flag=True,
           help="What `advise` advises for this job: levels, redundancy, compression and cadence."),
    option("--trace", type=click.Path(path_type=Path), metavar="FILE",
           help="Failures from a file instead of random ones: of sacct, a job's own runs, or a table."),
    option("--time-limit", metavar="TIME", help="Of each turn of the job; no limit if left out."),
    option("--queue", metavar="TIME|exponential:TIME|FILE",
           help="Time in the queue before each turn: constant, a mean, or drawn from a trace."),
    "preemption", "notice", "restart-mode", *CHECKPOINTS,
)  # fmt: skip
def campaign(asked: Asked) -> Result:
    """Useful time, lost work, time blocked, recoveries by level and bytes of a long run, over several seeds."""
    job, scheduling = asked.job(), asked.scheduling()
    if asked.advised and (asked.every is not None or asked.levels is not None):
        given_too = "--every" if asked.every is not None else "--levels"
        raise no_effect(given_too, "--advised is about the cadence, too", f"leave out --advised, or {given_too}")
    advice = advise(job, wanted=asked.wanted(), scheduling=scheduling) if asked.advised else None
    planned = Planned(job if advice is None else advice.chosen.job)
    job = planned.job
    trace = _trace(asked, job, scheduling)
    seeds = asked.seeds
    if trace is not None and not (job.machine.persistent.others or scheduling.random):
        seeds = _one_seed(seeds)
    cadences = _cadences(asked, planned, advice, scheduling)
    processes = _processes(planned, cadences, seeds, trace)
    results = run_seeds(
        planned, cadences, range(asked.seed, asked.seed + seeds), trace, processes=processes,
        progress=lambda runs: asked.status.update(f"{runs} of {seeds} runs"),
    )  # fmt: skip
    summary = summarize(results)
    left_out = asked.advised or None in (asked.every, asked.levels, asked.spares)
    note = f"what is left out (cadence, spare nodes) is chosen for the failures of {job.machine.name}, not of the trace"
    space = space_of_run(planned, cadences)
    document = {
        "cadence": {"period_s": cadences.period_s, "every": cadences.every, "wall_s": cadences.wall_s},
        "courses": results,
        "summary": summary,
        "bill": bill_of_run(planned, cadences, summary).document(),
        "space": space_document(job.machine, space, *daily_bytes(planned, cadences, summary)),
    }
    more = [] if advice is None else [advice_section(advice)]
    return job_result(
        "campaign", cadences.of(job), document, [campaign_section(planned, cadences, summary)],
        rows=[_row(each) | bill_of_run(planned, cadences, summarize([each])).row() for each in results],
        notes=[note] if left_out and trace is not None else [],
        spares=cadences.spares,
        page=lambda found: job_sections(cadences.of(job), [*found, *more]),
    )  # fmt: skip


def _row(result: RunResult) -> dict[str, Any]:
    """A run as one flat row."""
    row: dict[str, Any] = {"seed": result.seed, "efficiency": result.efficiency}
    row |= {name: seconds for name, seconds in asdict(result).items() if name in ("useful_s", "lost_s", "slowed_s")}
    row |= {f"{name.replace(' ', '_')}_s": seconds for name, seconds in result.buckets.items()}
    row |= {"failures": sum(result.failures.values()), "recoveries": sum(result.recoveries.values())}
    return row | {"checkpoints": max(result.checkpoints.values(), default=0), "bytes": sum(result.nbytes.values())}


# --- what happens -----------------------------------------------------------------------------------------------------


def _trace(asked: Asked, job: Job, scheduling: Scheduling) -> Trace | None:
    """The failures of the trace that strike the job; None without one. What nothing can come of is refused."""
    found = None if asked.trace is None else failures_from(asked.trace, job, asked.days * DAY_S)
    if not any(failure.kind == PREEMPTION for failure in found or ()) and not scheduling.ends_per_s():
        why = "the job never leaves its nodes: give --time-limit or --preemption, or a --trace with preemptions"
        if scheduling.notice_s:
            raise no_effect("--notice", why)
        if scheduling.waits != Waits():
            raise no_effect("--queue", why)
    if scheduling.notice_s >= scheduling.limit_s:
        raise ConfigError(
            "--notice leaves no time to train", expected="less than --time-limit",
            found=f"{scheduling.notice_s:g} s of {scheduling.limit_s:g} s", where="--notice",
        )  # fmt: skip
    return found


def _one_seed(seeds: int) -> int:
    """With a trace and no other jobs on the file system nothing is random: one run says it all."""
    why = "with --trace, and no other jobs on the file system ([persistent] others), nothing is random"
    for name, useless in (("seeds", seeds > 1), ("seed", True)):
        if given(name) and useless:
            raise no_effect(f"--{name}", why)
    return 1


# --- how often --------------------------------------------------------------------------------------------------------


def _cadences(asked: Asked, planned: Planned, advice: Advice | None, scheduling: Scheduling) -> Cadences:
    """The cadence that is asked for, or advised; what is left out is the best."""
    every, levels = asked.every, asked.levels
    if every is not None and levels is not None and given("flush_share"):
        raise no_effect("--flush-share", "it limits how often checkpoints are flushed, which --every and --levels give")
    ready = usual_spares(planned) if asked.spares is None else asked.spares
    how: dict[str, Any] = {"spares": ready, "elastic": asked.elastic, "scheduling": scheduling}
    wall_s = asked.days * DAY_S
    if advice is not None:
        chosen = advice.chosen
        return Cadences(training_s(chosen.costs, chosen.cadence), followed(chosen.cadence), wall_s, **how)
    period_s = None if every is None else read_time(every, "--every")
    counts = None if levels is None else _read_levels(levels, list(planned.on(planned.nodes).times.complete()))
    if period_s is None or counts is None:
        need_failures(planned.job)
        costs = level_costs(planned)
        found = asked.wanted().kept(costs, often_enough(costs, best(costs)))
        period_s = training_s(costs, found) if period_s is None else period_s
        counts = followed(found) if counts is None else counts
    for level in (Level.PARTNER, Level.PARITY, Level.LOCAL):
        if asked.values[level] and not counts.get(level):
            raise no_effect(f"--{level}", f"--levels leaves {level} out", f"add {level}=N to --levels, or leave it out")
    return Cadences(period_s, counts, wall_s, **how)


def _read_levels(text: str, on: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in text.split(","):
        level, _, count = (word.strip() for word in item.partition("="))
        if level not in on or level in found or not (count.isascii() and count.isdigit() and len(count) < 10):
            todo = None if level in on else meant_todo(level, on, "take one of these")
            expected = "LEVEL=N, separated by commas, with levels that are on, each once: " + ", ".join(on)
            raise impossible("--levels", expected, repr(item), todo)
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
        what = "a job without checkpoints needs no campaign"
        raise ConfigError(what, expected="a level with N of 1 or more", found=text, where="--levels")
    return found


def _processes(planned: Planned, cadences: Cadences, seeds: int, trace: Trace | None) -> int:
    """Runs that are simulated at a time; a campaign that nobody would wait for is refused."""
    count = seeds * events(planned, cadences, None if trace is None else len(trace))
    if not count <= MOST_EVENTS:
        raise ConfigError(
            "this campaign takes long to simulate",
            expected=f"at most {MOST_EVENTS:,.0f} calls and failures in all runs",
            found=f"about {count:,.0f}: {seeds} runs of {show_seconds(cadences.wall_s)}, a call "
            f"after every {show_seconds(cadences.period_s)} of training",
            where="deeppart-sim campaign",
            todo="take fewer --days or --seeds, or a longer --every",
        )
    return min(cores(), seeds) if count > WORTH_EVENTS else 1
