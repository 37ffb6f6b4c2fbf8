"""The sections of all results, for terminals and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from deeppart.model import LEVELS, Level, show_bytes, show_rate, show_seconds, show_share

from ..advise.choose import Advice, Choice, advise, describe, least_restart, loss_of, shown
from ..advise.comebacks import PARTS, PIECES_OF_ONE, REPLAY, Comparison
from ..advise.text import bill_of, config_toml, in_a_sentence, reasons
from ..budget import MONTH_DAYS, SHARE_WORDS, Bill, Row, bill_of_run, cells, missing, spending_lines
from ..campaign.costs import NOTHING, followed, training_s
from ..campaign.failures import rates_per_s
from ..campaign.outcomes import Estimate, Summary, show_number, summarize
from ..campaign.plan import MOST_EVENTS, Cadences, Planned, events, usual_spares
from ..machine.record import DAY_S, WAYS
from ..measure.validate import MEDIAN_TARGET, WORST_TARGET, Validation
from ..measure.validate import Comparison as Measured
from ..timing.published import TARGET, Figure
from ..timing.scale import Point, study
from ..timing.stages import Job, times_of
from .blocks import Block, Code, Columns, Items, Section, Table, table_of
from .charts import (
    advice_chart,
    after_chart,
    campaign_chart,
    jobs_chart,
    scaling_chart,
    share_chart,
    timeline_chart,
)

#: Titles of the sections of a job's page, in order.
GOODPUT, SCALES, CHECKPOINT = "Blocked time and goodput", "How it scales", "One checkpoint"
ADVICE, CAMPAIGN = "Advice", "A campaign"
#: Number and length of the runs of the campaign that is added to a page.
_SEEDS, _WALL_S = 3, 30 * DAY_S
#: Smaller fractions of the time are shown as 0.
_LEAST_PART = 5e-6


def _known(show: Callable[[float], str], value: float | None) -> str:
    return show(value) if value else ""


def _entry(show: Callable[[float], str], field: str, key: str, record: Any) -> str:
    """The cell for a key of a record's field."""
    return _known(show, getattr(record, field).get(key))


# --- jobs -------------------------------------------------------------------------------------------------------------


def job_facts(job: Job) -> list[tuple[str, str]]:
    """Describe a job, with the most important numbers of its machine."""
    state, machine = job.state, job.machine
    nodes = f"{job.nodes:,} node{'s' * (job.nodes > 1)}, {job.ranks_per_node} ranks per node"
    copies, writes, sends = map(show_rate, (machine.memory.copy, machine.local.write, machine.network.bandwidth))
    persistent = machine.persistent
    return [
        ("state", f"{state.name}: {show_bytes(state.nbytes)}, {state.parameters:,} parameters, "
                  f"{len(state.tensors):,} leaves, {state.layout}"),
        ("machine", f"{machine.name}, {nodes}"),
        ("node", f"copies {copies} a rank, writes {writes}, sends {sends}"),
        ("file system", f"{show_rate(persistent.write)}, {show_rate(persistent.node_write)} a node"),
        ("checkpoints", f"{describe(job)}; capture {job.capture}"),
    ]  # fmt: skip


def job_sections(job: Job, sections: Sequence[Section], advice: Advice | None = None) -> list[Section]:
    """The sections of a job's page: those of the command, scaling, one checkpoint, advice, and a campaign that follows
    it. The page of a campaign only has the advice that it followed.
    """
    found = {section.title: section for section in sections}
    if SCALES not in found:
        found[SCALES] = scaling_section(study(job, ladder(job), ("deeppart", "rank0")), job)
    found[CHECKPOINT] = timeline_section(job)
    if CAMPAIGN not in found and any(rates_per_s(job).values()):
        advice = advise(job) if advice is None else advice
        found.setdefault(ADVICE, advice_section(advice))
        found[CAMPAIGN] = _followed(advice)
    return [found[title] for title in (GOODPUT, SCALES, CHECKPOINT, ADVICE, CAMPAIGN) if title in found]


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def ladder(job: Job) -> list[int]:
    """The job's number of ranks, repeatedly halved, as far as its layout fits."""
    counts = [job.ranks]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return sorted(filter(job.state.layout.fits, set(counts)))


def scaling_section(points: Sequence[Point], job: Job) -> Section:
    """Time and speed-up over the number of ranks."""
    levels = [level for level in LEVELS if any(level in point.complete_s for point in points)]
    columns: dict[str, Callable[[Point], str]] = {
        "ranks": lambda each: f"{each.ranks:,}",
        "strategy": lambda each: each.strategy,
        "blocked": lambda each: show_seconds(each.blocked_s),
        "copy": lambda each: show_seconds(each.stages["capture"]),
        "encode": lambda each: _known(show_seconds, each.stages["encode"]),
    }
    for level in levels:
        columns[f"> {level}"] = partial(_entry, show_seconds, "complete_s", level)
    columns |= {
        "one by one": lambda each: show_seconds(each.serial_s),
        "speed-up": lambda each: f"{each.blocked_speedup:.3g}x",
        "efficiency": lambda each: _known("{:.0%}".format, each.blocked_efficiency),
        "most / mean": lambda each: f"{each.imbalance:.3f}",
        "largest": lambda each: show_bytes(each.largest_bytes),
    }
    title = "> level: until it is complete there; one by one: all stages, if they did not overlap"
    found = table_of(title, points, columns, lambda each: each.ranks)
    return Section(SCALES, [scaling_chart(points, job), found])


def timeline_section(job: Job) -> Section:
    """What a node does during one checkpoint."""
    return Section(CHECKPOINT, [timeline_chart(job, times_of(job, job.shares()))])


def goodput_section(job: Job, found: Sequence[Row], days: float) -> Section:
    """The cost of blocked time; columns only for what is known."""
    words = (
        "A call blocks training for so long, and then training goes on until the next one. What else checkpoints "
        "take is not in it: slower training in the background, and work that failures undo."
    )
    head = ["every", "a call blocks", "as", "goodput lost", f"node-hours in {days:g} days"]
    head += ["money"] if found[0].cost.money is not None else []
    lines = [
        [show_seconds(row.period_s), show_seconds(row.blocked_s), row.way, show_share(row.lost)]
        + cells(row.cost, job.machine.price.currency)
        for row in found
    ]
    breaks = {place for place in range(1, len(found)) if found[place].period_s != found[place - 1].period_s}
    marked = {place for place, row in enumerate(found) if row.way}
    table = Table(f"what blocked time costs on {job.nodes:,} nodes", head, lines, marked, breaks)
    return Section(GOODPUT, [words, table, Items(missing(job.machine))])


def published_section(figures: Sequence[Figure]) -> Section:
    """Published and simulated figures."""
    columns: Columns = {
        "source": lambda each: each.source,
        "case": lambda each: each.case,
        "published": lambda each: f"{each.published:.3g} {each.unit}",
        "simulated": lambda each: f"{each.simulated:.3g} {each.unit}",
        "difference": lambda each: f"{each.difference:+.0%}",
        "reproduced": lambda each: "(given)" if each.given else "yes" if each.reproduced else "no",
        "why": lambda each: each.why,
    }
    title = f"reproduced: within {TARGET:.0%}"
    return Section("Published and simulated", [table_of(title, figures, columns, lambda each: each.source)])


_WHAT_WORDS = {"restore": "until restored", "trained": "training, with a checkpoint"}


def validation_section(found: Validation) -> Section:
    """Predicted and measured times."""
    columns: Columns = {
        "kind": lambda each: each.kind,
        "ranks": lambda each: str(each.ranks),
        "state": lambda each: show_bytes(each.nbytes),
        "tensors": lambda each: f"{each.tensors:,}",
        "flush limit": lambda each: _known(show_rate, each.flush_bandwidth),
        "what": _what,
        "predicted": lambda each: show_seconds(each.predicted_s),
        "measured": lambda each: show_seconds(each.measured_s),
        "least": lambda each: show_seconds(each.least_s),
        "most": lambda each: show_seconds(each.most_s),
        "spread": lambda each: f"{each.spread:.0%}",
        "varied": lambda each: f"{each.varied:.0%}",
        "error": lambda each: f"{each.error:+.0%}",
    }
    title = (
        f"median error {found.median_error:.0%} (target {MEDIAN_TARGET:.0%}), worst {found.worst_error:.0%} (target "
        f"{WORST_TARGET:.0%}); {len(found.missed)} of {len(found.comparisons)} above that, {len(found.of_the_model)} "
        "of them by more than measurements of the same differ"
    )
    missed = {place for place, each in enumerate(found.comparisons) if abs(each.error) > WORST_TARGET}
    table = table_of(title, found.comparisons, columns, lambda each: each.ranks, marked=missed, mark="red")
    return Section("Predicted and measured", [table])


def _what(each: Measured) -> str:
    return f"until {each.what}" if each.what in LEVELS else _WHAT_WORDS.get(each.what, each.what)


# --- advice -----------------------------------------------------------------------------------------------------------


def advice_section(advice: Advice) -> Section:
    """The advice and its reasons."""
    blocks: list[Block] = [in_a_sentence(advice.chosen), advice_chart(advice), advice_table(advice)]
    blocks += [
        Items(reasons(advice)),
        bill_table(bill_of(advice.chosen), f"in {MONTH_DAYS:g} days of this, as advised"),
    ]
    blocks += [Items(missing(advice.chosen.job.machine)), _sensitivity_table(advice)]
    return Section(ADVICE, [*blocks, Code("deeppart.toml", config_toml(advice))])


def advice_table(advice: Advice) -> Table:
    """The advised choice, then others of the front, numbered as in the chart."""
    least, choices = least_restart(advice.front), shown(advice)
    numbers = {id(choice): number for number, choice in enumerate(choices, 1)}
    columns: dict[str, Callable[[Choice], str]] = {
        "number": lambda each: str(numbers[id(each)]),
        "levels": lambda each: describe(each.job),
        "lost": lambda each: _part(loss_of(each, least)),
        "writing": lambda each: _part(each.waste.cost),
        "doing again": lambda each: _part(each.waste.rework),
        "back slower": lambda each: _part(each.waste.restart - least),
        "wasted": lambda each: show_share(each.waste.total),
        "levels every": every_words,
        "on a node": lambda each: show_bytes(each.space.on_node),
        "to each drive a day": lambda each: show_bytes(each.node_daily_bytes),
        "to the file system a day": lambda each: show_bytes(each.drained_daily_bytes),
    }
    title = "advised, and choices that no other one is as good as; lost: what another choice could give back"
    return table_of(title, choices, columns, marked={0})


def _part(share: float) -> str:
    return show_share(share if share >= _LEAST_PART else 0.0)


def every_words(choice: Choice) -> str:
    """How often each level is written."""
    return " / ".join(show_seconds(choice.cadence.interval_s(cost.name)) for cost in choice.costs)


def _sensitivity_table(advice: Advice) -> Table:
    columns: Columns = {
        "time between failures": lambda each: f"{each.factor:g} times",
        "wasted as advised": lambda each: show_share(each.kept),
        "wasted at best": lambda each: show_share(each.adapted),
        "a call then every": lambda each: show_seconds(each.period_s),
    }
    return table_of("if failures come at another rate", advice.sensitivity, columns)


def _until(level: str, job: tuple[str, Choice]) -> str:
    return _entry(show_seconds, "complete_s", level, job[1])


def jobs_section(found: Mapping[str, Choice]) -> Section:
    """Several jobs, each with its advice."""
    levels = [level for level in LEVELS if any(level in choice.complete_s for choice in found.values())]
    columns: dict[str, Callable[[tuple[str, Choice]], str]] = {
        "job": lambda each: each[0],
        "levels": lambda each: describe(each[1].job),
        "blocked": lambda each: show_seconds(each[1].blocked_s),
    }
    for level in levels:
        columns[f"until {level}"] = partial(_until, level)
    columns |= {
        "call every": lambda each: show_seconds(each[1].cadence.period_s),
        "flush every": lambda each: show_seconds(each[1].cadence.interval_s(Level.PERSISTENT)),
        "not new training": lambda each: show_share(each[1].waste.total),
        "writing": lambda each: show_share(each[1].waste.cost),
        "doing again": lambda each: show_share(each[1].waste.rework),
        "coming back": lambda each: show_share(each[1].waste.restart),
        "to the file system a day": lambda each: show_bytes(each[1].drained_daily_bytes),
        "to each drive a day": lambda each: show_bytes(each[1].node_daily_bytes),
    }
    table = table_of("each with what is advised for it", found.items(), columns)
    return Section("Jobs beside each other", [jobs_chart(found), table])


# --- ways to restart --------------------------------------------------------------------------------------------------


def comeback_sections(chosen: Choice, found: Sequence[Comparison]) -> list[Section]:
    """The pieces of each way to restart, and the fraction of the time that each piece costs."""
    mode = chosen.job.machine.restart.mode
    words = f"As advised for {mode}, the machine's own way: {describe(chosen.job)}, every {every_words(chosen)}"
    ways = Items([f"{name}: {way.words}" for name, way in WAYS.items()])
    return [
        Section("After one failure", [words, after_chart(found, mode), after_table(found, mode), ways]),
        Section("Share of the time", [share_chart(found, mode), shares_table(found, mode)]),
    ]


def after_table(found: Sequence[Comparison], mode: str) -> Table:
    """The times of each way after each failure class."""
    pieces = _not_all_zero(PIECES_OF_ONE, (back.pieces for each in found for back in each.after.values()))
    rows = []
    for each in found:
        for kind, back in each.after.items():
            shown_pieces = [_known(show_seconds, back.pieces.get(piece)) for piece in pieces]
            totals = (show_seconds(back.total_s), show_seconds(back.replay_s))
            rows.append([each.way, kind, show_seconds(1 / back.failures_per_s), *shown_pieces, *totals])
    head = ["way", "failure", "one in", *map(_words, pieces), "back in", REPLAY]
    marked = {place for place, row in enumerate(rows) if row[0] == mode}
    breaks = {place for place in range(1, len(rows)) if rows[place][0] != rows[place - 1][0]}
    return Table("replay: work that is done again, on average", head, rows, marked, breaks)


def shares_table(found: Sequence[Comparison], mode: str) -> Table:
    """The fraction of the time for each part."""
    parts = _not_all_zero(PARTS, (each.shares for each in found))
    rows = [
        [each.way, *(_known(show_share, each.shares[part]) for part in parts), show_share(each.waste.total)]
        for each in found
    ]
    marked = {place for place, each in enumerate(found) if each.way == mode}
    return Table("share of the time", ["way", *map(_words, parts), "lost"], rows, marked)


def _not_all_zero(names: Iterable[str], values: Iterable[Mapping[str, float]]) -> list[str]:
    """The names with a value other than 0."""
    known = list(values)
    return [name for name in names if any(each.get(name) for each in known)]


def _words(part: str) -> str:
    return part.replace("_", " ")


# --- campaigns and bills ----------------------------------------------------------------------------------------------

_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity", NOTHING: "nothing: from the beginning"}


def campaign_section(planned: Planned, cadences: Cadences, summary: Summary) -> Section:
    """The results of a campaign: how time was spent, and what it cost."""
    useful = summary.efficiency
    words = (
        f"{describe(cadences.of(planned.job))}: {cadences}. {show_share(useful.mean)} (95 %: {show_share(useful.low)} "
        f"to {show_share(useful.high)}) of {show_seconds(cadences.wall_s)} is useful training."
    )
    bill = bill_table(bill_of_run(planned, cadences, summary), "what the run takes, all of its nodes together")
    spending = Items(spending_lines(planned, cadences, summary))
    return Section(CAMPAIGN, [words, campaign_chart(summary), _summary_table(summary), bill, spending])


def _followed(advice: Advice) -> Section:
    """A campaign that follows the advice."""
    from ..campaign.run import run  # imports simpy, which commands without a page or campaign do not need

    chosen, planned = advice.chosen, Planned(advice.chosen.job)
    period_s, every = training_s(chosen.costs, chosen.cadence), followed(chosen.cadence)
    spares = usual_spares(planned)
    cadences = Cadences(period_s, every, _WALL_S, spares=spares, scheduling=advice.scheduling)
    if not _SEEDS * events(planned, cadences) <= MOST_EVENTS:
        return Section(CAMPAIGN, ["Failures come so often that this takes too long to simulate."])
    return campaign_section(planned, cadences, summarize([run(planned, cadences, 1 + seed) for seed in range(_SEEDS)]))


def _summary_table(summary: Summary) -> Table:
    """How the time of a campaign was spent, what failed, and what was written."""
    rare = ("leaving", "queued")
    shares = {
        words: summary.shares[name]
        for name, words in SHARE_WORDS.items()
        if name not in rare or summary.shares[name].most
    }
    events = {f"failures: {kind}": value for kind, value in summary.failures.items()}
    events |= {f"ended: {kind}": value for kind, value in summary.ends.items()}
    events |= {"of these with everything saved": summary.in_time} if summary.ends else {}
    events |= {f"came back from {_LEVEL_WORDS.get(level, level)}": value for level, value in summary.recoveries.items()}
    events |= {"stopped to take nodes in": summary.grown} if summary.grown.most else {}
    writes = {f"checkpoints: {level}": value for level, value in summary.checkpoints.items()}
    rows = [_estimate(label, value, show_share) for label, value in shares.items()]
    rows += [_estimate(label, value, show_number) for label, value in (events | writes).items()]
    rows += [_estimate(f"written: {level}", value, show_bytes) for level, value in summary.nbytes.items()]
    title = "one run"
    if summary.seeds > 1:
        title = f"mean of {summary.seeds} runs (95 % confidence interval, Student's t; least and most)"
    breaks = {len(shares), len(shares) + len(events)}
    return Table(title, ["", "mean", "95 %", "least", "most"], rows, breaks=breaks)


def _estimate(label: str, value: Estimate, show: Callable[[float], str]) -> list[str]:
    interval = "" if value.low == value.high else f"{show(value.low)} to {show(value.high)}"
    return [label, show(value.mean), interval, show(value.least), show(value.most)]


def bill_table(bill: Bill, title: str) -> Table:
    """The items of a bill, what was not useful, and the total; columns only for what is known."""
    total = bill.total
    head = ["", "node-hours", *(["money"] if total.money is not None else [])]
    shown_items = [each for each in bill.items if each.node_hours]
    rows = [[each.what, *cells(each, bill.currency)] for each in (*shown_items, bill.lost, total)]
    return Table(title, head, rows, breaks={len(shown_items)})
