"""One page for a browser with everything: scaling, a timeline, a campaign, the advice. It needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from deeppart.errors import ConfigError
from deeppart.model.units import show_bytes, show_rate, show_seconds, show_share

from ..advise.choose import Advice, advise, describe, least_restart, loss_of, shown
from ..advise.compare import has_failures
from ..advise.text import bill_of, config_toml, in_a_sentence, reasons, what_if
from ..budget.bill import MONTH_DAYS, bill_of_run, daily_bytes, missing, space_of_run
from ..budget.space import space_lines
from ..campaign.costs import followed, training_s
from ..campaign.outcomes import Estimate, Summary, show_number, summarize
from ..campaign.plan import Cadences, Planned, effort_s, too_long, usual_spares
from ..machine.record import DAY_S
from ..measure.validate import Validation
from ..timing.scale import Point, study
from ..timing.stages import Job, times_of
from .advice_charts import advice_chart
from .bill_part import bill_html
from .charts import campaign_chart, scaling_chart, validation_chart
from .html import document, facts, figure, folded, legend, section, table
from .timeline import MOST_NODES, Group, fold, legend_of, numbers_of, timeline, timeline_html

#: Runs of the campaign that a page makes for itself, and their length.
_SEEDS, _WALL_S = 3, 30 * DAY_S
#: Of the time; less is not written in a table.
_LEAST_PART = 5e-6
#: Kinds of nodes that are drawn.
_MOST_GROUPS = 8


@dataclass(frozen=True)
class Contents:
    """The results that a command has already; a page computes the rest itself.

    Attributes:
        points: of a scaling study.
        summary, cadences: of a campaign. Its page has no advice but the one that was followed, if one was.
        advice: for the job.
        extra: (heading, rows) of a table of its own, the first row being its head.
        validation: what the table is of, if it is of one.
        command: that was given.
    """

    points: Sequence[Point] | None = None
    summary: Summary | None = None
    cadences: Cadences | None = None
    advice: Advice | None = None
    extra: tuple[str, Sequence[Sequence[str]]] | None = None
    validation: Validation | None = None
    command: str = ""


def write_page(path: Path, job: Job, contents: Contents, seed: int) -> None:
    """Write the page."""
    path.write_text(page(job, contents, seed), encoding="utf-8")


def page(job: Job, contents: Contents, seed: int) -> str:
    """The page as a text; the same input, the same bytes."""
    sections = []
    if contents.extra is not None:
        title, rows = contents.extra
        drawn = "" if contents.validation is None else figure(validation_chart(contents.validation))
        sections.append(section(title, drawn + table(rows)))
    sections.append(_scaling(job, contents.points))
    sections.append(_timeline(job))
    advice = contents.advice
    if advice is None and contents.summary is None and has_failures(job):
        advice = advise(job)
    if advice is not None:
        sections.append(_advice(advice))
    sections.append(_campaign(job, contents, advice, seed))
    title = f"{job.state.name} on {job.ranks} ranks of {job.machine.name}"
    spares = 0 if contents.cadences is None else contents.cadences.spares
    notes = "".join(f"<p>{escape(note)}.</p>" for note in what_if(job.machine, job.nodes, spares))
    return document(title, job_facts(job) + notes + "".join(sections), contents.command)


def job_facts(job: Job) -> str:
    """What a job is, and the numbers of its machine that matter most."""
    state, machine = job.state, job.machine
    items = (
        ("state", f"{show_bytes(state.nbytes)}, {state.parameters:,} parameters, {len(state.tensors):,} leaves"),
        ("layout", f"{state.layout}; {job.nodes:,} node{'s' * (job.nodes > 1)}, {job.ranks_per_node} ranks on each"),
        (
            "node",
            f"copies {show_rate(machine.memory.copy)} a rank, writes {show_rate(machine.local.write)}, "
            f"sends {show_rate(machine.network.bandwidth)}",
        ),
        ("file system", f"{show_rate(machine.persistent.write)}, {show_rate(machine.persistent.node_write)} a node"),
        ("checkpoints", f"{describe(job)}; capture {job.capture}"),
    )
    return facts(items)


def _scaling(job: Job, points: Sequence[Point] | None) -> str:
    if points is None:
        points = study(job, ladder(job), ("deeppart", "rank0"), tuple(dict.fromkeys(("none", job.compression))))
    rows = [["ranks", "strategy", "codec", "blocked", "all stages", "speed-up, blocked", "largest share"]]
    rows += [
        [
            f"{point.ranks:,}", point.strategy, point.compression, show_seconds(point.blocked_s),
            show_seconds(point.serial_s), f"{show_number(point.blocked_speedup)}x", show_bytes(point.largest_bytes),
        ]
        for point in points
    ]  # fmt: skip
    return section("How it scales", figure(scaling_chart(points, job)) + folded("the numbers", table(rows)))


def ladder(job: Job) -> list[int]:
    """Powers of two up to the job's ranks that its layout fits."""
    counts = [job.ranks]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    fitting = []
    for count in counts:
        try:
            job.state.layout.at(count)
        except ConfigError:
            continue
        fitting.append(count)
    return sorted(set(fitting))


def _timeline(job: Job) -> str:
    groups = groups_of(job)
    shown = groups[:_MOST_GROUPS]
    words = "<p>What each node does from the call on. Nodes that do the same, to within 3 %, are one line."
    if job.nodes > MOST_NODES:
        words += f" Looked at were the first {MOST_NODES:,} of {job.nodes:,} nodes."
    if len(groups) > len(shown):
        left = sum(len(group.nodes) for group in groups[_MOST_GROUPS:])
        words += f" {left:,} other nodes do the same at other times, and are not drawn."
    body = f"{words}</p>{legend(legend_of(shown))}{timeline_html(shown)}"
    return section("One checkpoint", body + folded("the numbers", table(numbers_of(shown))))


def groups_of(job: Job) -> list[Group]:
    """What its nodes do during one checkpoint."""
    shares = job.shares()
    return fold(timeline(job, times_of(job, shares)))


def _advice(advice: Advice) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in reasons(advice))
    chosen, least = advice.chosen, least_restart(advice.front)
    words = (
        f"<p><b>{escape(in_a_sentence(chosen))}</b> {escape(describe(chosen.job))} loses "
        f"{show_share(loss_of(chosen, least))} of the time and writes {show_bytes(chosen.drained_daily_bytes)} a day "
        f"to the file system. Coming back after failures takes {show_share(least)} of the time whatever is chosen; the "
        "charts leave that out.</p>"
    )
    choices = shown(advice)
    rows = [["number", "levels", "lost", "writing", "doing again", "back slower", "levels every",
             "to the file system a day", "to each drive a day"]]  # fmt: skip
    for number, choice in enumerate(choices, 1):
        parts = (loss_of(choice, least), choice.waste.cost, choice.waste.rework, choice.waste.restart - least)
        every = " / ".join(show_seconds(choice.cadence.interval_s(cost.name)) for cost in choice.costs)
        sizes = (choice.drained_daily_bytes, choice.node_daily_bytes)
        rows.append(
            [str(number), describe(choice.job), *map(_part, parts), every,
             *map(show_bytes, sizes)]
        )  # fmt: skip
    marked = next(number for number, choice in enumerate(choices) if choice is chosen)
    rates = [["if time between failures is", "wasted as advised", "wasted at best", "a call then every"]]
    rates += [
        [f"{each.factor:g} times", show_share(each.kept), show_share(each.adapted), show_seconds(each.period_s)]
        for each in advice.sensitivity
    ]
    month = f"<h3>What {MONTH_DAYS:g} days take</h3>{bill_html(bill_of(chosen), 'bill-advice')}{_missing(chosen.job)}"
    config = f"<pre>{escape(config_toml(advice))}</pre>"
    numbers = folded("the numbers", table(rows, {marked}, stacked=True))
    return section(
        "Advice", f"{words}{figure(advice_chart(advice))}{numbers}<h3>Why</h3><ul>{items}</ul>{month}"
        f"<h3>If failures come at another rate</h3>{table(rates, stacked=True)}<h3>deeppart.toml</h3>{config}",
    )  # fmt: skip


def _campaign(job: Job, contents: Contents, advice: Advice | None, seed: int) -> str:
    summary, cadences, planned = contents.summary, contents.cadences, Planned(job)
    if summary is None and advice is not None:
        from ..campaign.run import run

        chosen = advice.chosen
        period = training_s(chosen.costs, chosen.cadence)
        planned = Planned(chosen.job)
        cadences = Cadences(
            period, followed(chosen.cadence), _WALL_S, spares=usual_spares(planned), scheduling=advice.scheduling
        )
        if too_long(_SEEDS * effort_s(planned, cadences)):
            return section("A campaign", "<p>Failures come so often that this takes too long to simulate.</p>")
        summary = summarize([run(planned, cadences, number) for number in range(seed, seed + _SEEDS)])
    if summary is None or cadences is None:
        return ""
    setup = escape(f"{describe(cadences.of(planned.job))}: {cadences}")
    words = (
        f"<p>{setup}. {_interval(summary.efficiency)} of {show_seconds(cadences.wall_s)} is useful training, in "
        f"{summary.seeds} runs.</p>"
    )
    rows = [["", "mean", "least", "most"]]
    for prefix, names, show in (
        ("failures", summary.failures, show_number),
        ("came back from", summary.recoveries, show_number),
        ("checkpoints", summary.checkpoints, show_number),
        ("written", summary.nbytes, show_bytes),
    ):
        rows += [
            [f"{prefix}: {name}", show(each.mean), show(each.least), show(each.most)] for name, each in names.items()
        ]
    drawn = words + figure(campaign_chart(summary)) + folded("the numbers", table(rows))
    return section("A campaign", f"{drawn}<h3>What the run takes</h3>{_budget(planned, cadences, summary)}")


def _budget(planned: Planned, cadences: Cadences, summary: Summary) -> str:
    """The bill of a run, and its space."""
    space = space_of_run(planned, cadences)
    written = daily_bytes(planned, cadences, summary)
    lines = [f"no room: {line}; a job would end there" for line in space.too_large]
    lines += space_lines(planned.job.machine, space, *written)
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    drawn = bill_html(bill_of_run(planned, cadences, summary), "bill-campaign")
    return f"{drawn}<ul>{items}</ul>{_missing(planned.job)}"


def _missing(job: Job) -> str:
    """What a bill leaves out."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in missing(job.machine))
    return f"<ul>{lines}</ul>" if lines else ""


def _part(share: float) -> str:
    """A part of what is lost; next to nothing is nothing."""
    return show_share(share if share >= _LEAST_PART else 0.0)


def _interval(value: Estimate) -> str:
    return f"{show_share(value.mean)} (95 %: {show_share(value.low)} to {show_share(value.high)})"
