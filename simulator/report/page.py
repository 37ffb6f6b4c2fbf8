"""Pages for a browser: sections with charts and tables. The same input gives the same bytes.

A command gives the results that it has; :func:`job_page` computes what else a page of a job shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from deeppart.errors import ConfigError
from deeppart.model import show_bytes, show_rate, show_seconds, show_share

from ..advise.choose import Advice, Choice, advise, describe, least_restart, loss_of
from ..advise.compare import Comparison, Side, has_failures, least_restart_of
from ..advise.text import bill_of, bursts, config_toml, in_a_sentence, reasons, what_if
from ..budget.bill import MONTH_DAYS, Bill, Row, bill_of_run, missing, spending_lines
from ..campaign.costs import followed, training_s
from ..campaign.outcomes import Estimate, Summary, summarize
from ..campaign.plan import Cadences, Planned, effort_s, too_long, usual_spares
from ..machine.record import DAY_S, WAYS
from ..measure.validate import Validation
from ..timing.scale import Point, study
from ..timing.stages import Job, times_of
from . import charts, tables
from .html import document, facts, figure, legend, listed, numbers, section, table
from .timeline import MOST_NODES, Group, bars_table, fold, legend_of, timeline, timeline_html

#: Runs of the campaign that a page makes for itself, and their length.
_SEEDS, _WALL_S = 3, 30 * DAY_S
#: Kinds of nodes that are drawn: of a job, and of each where several are compared.
_MOST_GROUPS, _MOST_COMPARED = 8, 3


def job_page(
    job: Job,
    command: str,
    seed: int = 1,
    *,
    first: Iterable[str] = (),
    points: Sequence[Point] | None = None,
    advice: Advice | None = None,
    played: tuple[Planned, Cadences, Summary] | None = None,
) -> str:
    """The page of a job: how it scales, one checkpoint, advice, and a campaign that follows it. That of a campaign that
    was ``played`` has no advice but the one that was followed, if one was.
    """
    if points is None:
        points = study(job, ladder(job), ("deeppart", "rank0"), tuple(dict.fromkeys(("none", job.compression))))
    if advice is None and played is None and has_failures(job):
        advice = advise(job)
    sections = [*first, scaling_section(job, points), timeline_section(job)]
    sections += [] if advice is None else [advice_section(advice)]
    if played is not None:
        sections.append(campaign_section(*played))
    elif advice is not None:
        sections.append(_followed(advice, seed))
    spares = 0 if played is None else played[1].spares
    return page(f"{job.state.name} on {job.ranks} ranks of {job.machine.name}", sections, command, job, spares)


def page(title: str, sections: Iterable[str], command: str, job: Job | None = None, spares: int = 0) -> str:
    """A page of some sections, with what their job is."""
    about = "" if job is None else job_facts(job) + _paragraphs(what_if(job.machine, job.nodes, spares))
    return document(title, about + "".join(sections), command)


def _paragraphs(notes: Iterable[str]) -> str:
    return "".join(f"<p>{escape(note)}.</p>" for note in notes)


def job_facts(job: Job) -> str:
    """What a job is, and the numbers of its machine that matter most."""
    state, machine = job.state, job.machine
    copies, writes, sends = map(show_rate, (machine.memory.copy, machine.local.write, machine.network.bandwidth))
    return facts(
        (
            ("state", f"{show_bytes(state.nbytes)}, {state.parameters:,} parameters, {len(state.tensors):,} leaves"),
            (
                "layout",
                f"{state.layout}; {job.nodes:,} node{'s' * (job.nodes > 1)}, {job.ranks_per_node} ranks on each",
            ),
            ("node", f"copies {copies} a rank, writes {writes}, sends {sends}"),
            (
                "file system",
                f"{show_rate(machine.persistent.write)}, {show_rate(machine.persistent.node_write)} a node",
            ),
            ("checkpoints", f"{describe(job)}; capture {job.capture}"),
        )
    )


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def scaling_section(job: Job, points: Sequence[Point]) -> str:
    """Time and speed-up against ranks."""
    return section("How it scales", figure(charts.scaling_chart(points, job)) + numbers(tables.points_table(points)))


def ladder(job: Job) -> list[int]:
    """The job's ranks, halved again and again, where its layout fits."""
    counts = [job.ranks]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)

    def fits(count: int) -> bool:
        try:
            job.state.layout.at(count)
        except ConfigError:
            return False
        return True

    return sorted(filter(fits, set(counts)))


def timeline_section(job: Job) -> str:
    """What each node does during one checkpoint."""
    groups = _groups_of(job)
    drawn = groups[:_MOST_GROUPS]
    words = "<p>What each node does from the call on. Nodes that do the same, to within 3 %, are one line."
    if job.nodes > MOST_NODES:
        words += f" Looked at were the first {MOST_NODES:,} of {job.nodes:,} nodes."
    if len(groups) > len(drawn):
        left = sum(len(group.nodes) for group in groups[_MOST_GROUPS:])
        words += f" {left:,} other nodes do the same at other times, and are not drawn."
    body = f"{words}</p>{legend(legend_of(drawn))}{timeline_html(drawn)}"
    return section("One checkpoint", body + numbers(bars_table(drawn)))


def _groups_of(job: Job) -> list[Group]:
    return fold(timeline(job, times_of(job, job.shares())))


def goodput_section(job: Job, rows: Sequence[Row], days: float) -> str:
    """What blocked time costs."""
    words = (
        "<p>A call blocks training for so long, and then training goes on until the next one. What else checkpoints "
        "take is not in it: slower training in the background, and work that failures undo.</p>"
    )
    drawn = figure(charts.goodput_chart(rows, days)) + numbers(tables.costs_table(job, rows, days))
    return section("Blocked time and goodput", words + drawn + listed(missing(job.machine)))


def validation_section(found: Validation) -> str:
    """Predicted and measured times."""
    shown = tables.validation_table(found)
    return section(shown.title, figure(charts.validation_chart(found)) + table(shown))


# --- advice and campaigns ---------------------------------------------------------------------------------------------


def advice_section(advice: Advice) -> str:
    """What is advised, and why."""
    chosen, least = advice.chosen, least_restart(advice.front)
    words = (
        f"<p><b>{escape(in_a_sentence(chosen))}</b> {escape(describe(chosen.job))} loses "
        f"{show_share(loss_of(chosen, least))} of the time and writes {show_bytes(chosen.drained_daily_bytes)} a day "
        f"to the file system. Coming back after failures takes {show_share(least)} of the time whatever is chosen; the "
        "charts leave that out.</p>"
    )
    drawn = figure(charts.advice_chart(advice)) + numbers(tables.advice_table(advice))
    month = f"<h3>What {MONTH_DAYS:g} days take</h3>{_bill(bill_of(chosen), 'bill-advice')}"
    month += listed(missing(chosen.job.machine))
    rates = f"<h3>If failures come at another rate</h3>{table(tables.sensitivity_table(advice))}"
    config = f"<h3>deeppart.toml</h3><pre>{escape(config_toml(advice))}</pre>"
    return section("Advice", f"{words}{drawn}<h3>Why</h3>{listed(reasons(advice))}{month}{rates}{config}")


def _bill(bill: Bill, name: str) -> str:
    chart = charts.bill_chart(bill, name)
    return ("" if chart is None else figure(chart)) + table(tables.bill_table(bill, ""))


def _followed(advice: Advice, seed: int) -> str:
    """A campaign with what is advised."""
    from ..campaign.run import run  # brings in simpy, which a command without a page or a campaign does without

    chosen, planned = advice.chosen, Planned(advice.chosen.job)
    period_s, every = training_s(chosen.costs, chosen.cadence), followed(chosen.cadence)
    spares = usual_spares(planned)
    cadences = Cadences(period_s, every, _WALL_S, spares=spares, scheduling=advice.scheduling)
    if too_long(_SEEDS * effort_s(planned, cadences)):
        return section("A campaign", "<p>Failures come so often that this takes too long to simulate.</p>")
    summary = summarize([run(planned, cadences, number) for number in range(seed, seed + _SEEDS)])
    return campaign_section(planned, cadences, summary)


def campaign_section(planned: Planned, cadences: Cadences, summary: Summary) -> str:
    """A campaign: where the time goes, and what it takes."""
    words = (
        f"<p>{escape(f'{describe(cadences.of(planned.job))}: {cadences}')}. {_interval(summary.efficiency)} of "
        f"{show_seconds(cadences.wall_s)} is useful training, in {summary.seeds} runs.</p>"
    )
    drawn = words + figure(charts.campaign_chart(summary)) + numbers(tables.summary_table(summary))
    bill = _bill(bill_of_run(planned, cadences, summary), "bill-campaign")
    bill += listed(spending_lines(planned, cadences, summary))
    return section("A campaign", f"{drawn}<h3>What the run takes</h3>{bill}")


def _interval(value: Estimate) -> str:
    return f"{show_share(value.mean)} (95 %: {show_share(value.low)} to {show_share(value.high)})"


# --- comparisons ------------------------------------------------------------------------------------------------------


def restart_sections(chosen: Choice, found: Sequence[Comparison]) -> list[str]:
    """The pieces of each way to come back, and the share of the time that each costs."""
    mode = chosen.job.machine.restart.mode
    words = (
        f"<p>All ways have the levels and the cadence that are advised for <b>{escape(mode)}</b>, the machine's own: "
        f"{escape(describe(chosen.job))}, every {tables.every_words(chosen)}. Replay: work that is done again, on "
        "average.</p>"
    )
    ways = "".join(f"<li><b>{escape(way.name)}</b>: {escape(way.words)}</li>" for way in WAYS.values())
    after = figure(charts.after_chart(found, mode)) + numbers(tables.after_table(found, mode))
    saved = "<p>Saved by half: what would be saved of the time if the piece took half as long.</p>"
    shares = figure(charts.share_chart(found, mode)) + numbers(tables.shares_table(found, mode))
    return [
        section("After one failure", f"{words}<ul>{ways}</ul>{after}"),
        section("Share of the time", saved + shares),
    ]


def comparison_sections(sides: Sequence[Side]) -> list[str]:
    """Jobs side by side, on common scales, and then each of them."""
    words = (
        "<p>Each line is a job with the levels, the redundancy, the compression and the cadence that are advised for "
        f"it. Coming back after failures takes at least {show_share(least_restart_of(sides))} of the time; the chart "
        "leaves that out.</p>"
    )
    drawn = "".join(f"<div>{figure(chart)}</div>" for chart in charts.comparison_charts(sides))
    beside = words + table(tables.sides_table(sides)) + f"<div class=charts>{drawn}</div>"
    return [
        section("Side by side", beside), _timelines(sides), section("The jobs", "".join(map(_about, sides)))
    ]  # fmt: skip


def _timelines(sides: Sequence[Side]) -> str:
    drawn = [_groups_of(side.job)[:_MOST_COMPARED] for side in sides]
    every = [group for groups in drawn for group in groups]
    end_s = max((bar.end_s for group in every for bar in group.bars), default=1.0)
    parts = [
        f"<h3>{escape(side.label)}</h3>{timeline_html(groups, end_s)}{numbers(bars_table(groups))}"
        for side, groups in zip(sides, drawn, strict=True)
    ]
    words = "<p>What nodes do from the call on; all on the same scale. Nodes that do the same are one line.</p>"
    return section("One checkpoint", words + legend(legend_of(every)) + "".join(parts))


def _about(side: Side) -> str:
    notes = _paragraphs([*what_if(side.job.machine, side.job.nodes), *bursts(side.job)])
    title = f"{side.label}: {side.job.state.name} on {side.job.machine.name}"
    return f"<h3>{escape(title)}</h3>{job_facts(side.job)}{notes}"
