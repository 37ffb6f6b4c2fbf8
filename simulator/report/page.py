"""One page for a browser with everything: scaling, a timeline, a campaign, the advice. It needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from deeppart.errors import ConfigError
from deeppart.model.units import show_bytes, show_rate, show_seconds, show_share

from ..advise.choose import Advice, advise, describe
from ..advise.notes import what_if
from ..advise.text import config_toml, reasons
from ..campaign.costs import training_s
from ..campaign.effort import effort_s, too_long
from ..campaign.outcomes import Estimate, Summary, show_number, summarize
from ..campaign.plan import Cadences, Planned, usual_spares
from ..timing.scale import Point, study
from ..timing.stages import Job, times_of
from ..timing.timeline import MOST_NODES, timeline
from .charts import advice_figure, campaign_figure, scaling_figure, svg
from .timeline_svg import legend_html, timeline_svg

#: Runs of the campaign that a page makes for itself, and their length.
_SEEDS, _WALL_S = 3, 30 * 86400.0


@dataclass(frozen=True)
class Contents:
    """The results that a command has already; a page computes the rest itself.

    Attributes:
        points: of a scaling study.
        summary, cadences: of a campaign.
        advice: for the job.
        step_s: length of a training step, for the advice; 0 if it is not known.
        extra: (heading, rows) of a table of its own, the first row being its head.
    """

    points: Sequence[Point] | None = None
    summary: Summary | None = None
    cadences: Cadences | None = None
    advice: Advice | None = None
    step_s: float = 0.0
    extra: tuple[str, Sequence[Sequence[str]]] | None = None


def write_page(path: Path, job: Job, contents: Contents, seed: int) -> None:
    """Write the page."""
    path.write_text(page(job, contents, seed), encoding="utf-8")


def page(job: Job, contents: Contents, seed: int) -> str:
    """The page as a text; the same input, the same bytes."""
    sections = []
    if contents.extra is not None:
        title, rows = contents.extra
        sections.append(_section(title, _table(rows)))
    sections.append(_scaling(job, contents.points))
    sections.append(_timeline(job))
    advice = contents.advice
    if advice is None and _has_failures(job):
        advice = advise(job)
    if advice is not None:
        sections.append(_advice(advice, contents.step_s))
    sections.append(_campaign(job, contents, advice, seed))
    title = f"{job.state.name} on {job.ranks} ranks of {job.machine.name}"
    spares = 0 if contents.cadences is None else contents.cadences.spares
    notes = "".join(f"<p>{escape(note)}.</p>" for note in what_if(job.machine, job.nodes, spares))
    body = _facts(job) + notes + "".join(sections)
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>deeppart-sim: {escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}"
        "<footer>deeppart-sim: projected with the library's own partitioner and restart planner.</footer>"
        "</main></body></html>\n"
    )


def _facts(job: Job) -> str:
    state, machine = job.state, job.machine
    facts = (
        ("state", f"{show_bytes(state.nbytes)}, {state.parameters:,} parameters, {len(state.tensors):,} leaves"),
        ("layout", f"{state.layout}; {job.nodes:,} nodes, {job.ranks_per_node} ranks on each"),
        (
            "node",
            f"copies {show_rate(machine.memory.copy)} a rank, writes {show_rate(machine.local.write)}, "
            f"sends {show_rate(machine.network.bandwidth)}",
        ),
        ("file system", f"{show_rate(machine.persistent.write)}, {show_rate(machine.persistent.node_write)} a node"),
        ("checkpoints", f"{describe(job)}; capture {job.capture}"),
    )
    items = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return f"<dl>{items}</dl>"


def _scaling(job: Job, points: Sequence[Point] | None) -> str:
    if points is None:
        points = study(job, ladder(job), ("deeppart", "rank0"), tuple(dict.fromkeys(("none", job.compression))))
    rows = [["ranks", "strategy", "codec", "blocked", "all stages", "speed-up, blocked", "largest share"]]
    rows += [
        [
            f"{point.ranks:,}", point.strategy, point.compression, show_seconds(point.blocked_s),
            show_seconds(point.serial_s), f"{point.blocked_speedup:.3g}x", show_bytes(point.largest_bytes),
        ]
        for point in points
    ]  # fmt: skip
    return _section("How it scales", svg(scaling_figure(points, job)) + _folded("the numbers", _table(rows)))


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
    shares = job.state.shares(job.ranks, job.strategy, job.machine.memory.kappa_bytes)
    bars = timeline(job, times_of(job, shares))
    shown = f"the first {MOST_NODES} of {job.nodes:,} nodes" if job.nodes > MOST_NODES else "all nodes"
    words = f"<p>Who does what during one checkpoint, on {shown}; a bar says how long and how much.</p>"
    return _section("One checkpoint", words + legend_html() + timeline_svg(bars))


def _advice(advice: Advice, step_s: float) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in reasons(advice))
    rows = [["if time between failures is", "wasted as advised", "wasted at best", "a call then every"]]
    rows += [
        [f"{each.factor:g} times", show_share(each.kept), show_share(each.adapted), show_seconds(each.period_s)]
        for each in advice.sensitivity
    ]
    config = f"<pre>{escape(config_toml(advice, step_s))}</pre>"
    return _section("Advice", f"<ul>{items}</ul>{svg(advice_figure(advice))}{_table(rows)}{config}")


def _campaign(job: Job, contents: Contents, advice: Advice | None, seed: int) -> str:
    summary, cadences = contents.summary, contents.cadences
    if summary is None and advice is not None:
        from ..campaign.run import run  # brings in simpy, which a command without a page or a campaign does without

        chosen = advice.chosen
        period = training_s(chosen.costs, chosen.cadence)
        planned = Planned(chosen.job)
        cadences = Cadences(period, dict(chosen.cadence.every), _WALL_S, spares=usual_spares(planned))
        if too_long(_SEEDS * effort_s(planned, cadences)):
            return _section("A campaign", "<p>Failures come so often that this takes too long to simulate.</p>")
        summary = summarize([run(planned, cadences, number) for number in range(seed, seed + _SEEDS)])
    if summary is None or cadences is None:
        return ""
    words = (
        f"<p>{show_seconds(cadences.wall_s)} with a checkpoint after every {show_seconds(cadences.period_s)} of "
        f"training, {summary.seeds} runs: {_interval(summary.efficiency)} of the time is useful "
        "training.</p>"
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
    return _section("A campaign", words + svg(campaign_figure(summary)) + _folded("the numbers", _table(rows)))


def _has_failures(job: Job) -> bool:
    failures = job.machine.failures
    return min(failures.process, failures.node, failures.group, failures.system) < float("inf")


def _interval(value: Estimate) -> str:
    return f"{value.mean:.1%} (95 %: {value.low:.1%} to {value.high:.1%})"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *body = [[escape(cell) for cell in row] for row in rows]
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    return (
        f"<table><thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead><tbody>{lines}</tbody></table>"
    )


_STYLE = """
:root{color-scheme:light dark;--ink:#1d2127;--soft:#5b636e;--line:#d9dde3;--paper:#fbfbfc;--card:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa3ae;--line:#343a42;--paper:#15181c;--card:#1c2025}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 24px}h1{font-size:25px;font-weight:650;margin:0 0 14px}
h2{font-size:18px;font-weight:600;margin:0 0 10px}section{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:20px 22px;margin:18px 0;overflow-x:auto}svg{max-width:100%;height:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:0}dt{color:var(--soft)}dd{margin:0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:8px 0}th,td{padding:3px 14px 3px 0;
text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:500}
th:first-child,td:first-child{text-align:left}pre{background:var(--paper);border:1px solid var(--line);
border-radius:8px;padding:12px 14px;overflow-x:auto}
summary{cursor:pointer;color:var(--soft);margin-top:8px}ul{padding-left:20px}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;color:var(--soft);margin:4px 0 10px}.legend i{display:inline-block;
width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.timeline text{fill:var(--soft);font:11px system-ui,sans-serif}
.timeline .node{fill:var(--ink);font-weight:600}.timeline .lane{text-anchor:end}.timeline .axis{text-anchor:middle}
.timeline .tick{stroke:var(--line)}.timeline rect:hover{filter:brightness(1.15)}
footer{color:var(--soft);margin-top:24px;font-size:13px}
"""
