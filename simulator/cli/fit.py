"""``deeppart-sim fit``: failure rates of a machine from what has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import show_seconds

from ..machine.record import DAY_S, MOST_RANKS_PER_NODE
from ..report.tables import Table
from ..traces.fit import Assumed, Fit, Shape, failures_toml
from ..traces.fit import fit as fit_trace
from ..traces.read import read_trace
from ..traces.record import PREEMPTION
from .options import MOST_RANKS, Asked, FiniteRange, NewFile, command, given, no_effect, option
from .output import Shown, emit

_OF = {
    "process": "of a process",
    "node": "of a node",
    "group": "of a group",
    "system": "of everything",
    PREEMPTION: "preemption of a job",
}


@command(
    "Fit failure rates to a trace, or to a job's own runs.",
    click.Argument(["path"], type=click.Path(path_type=Path), metavar="FILE|DIR"),
    "system",
    option("--nodes", type=click.IntRange(1, MOST_RANKS), help="That were watched, where the file does not say."),
    option("--days", type=FiniteRange(min=0, min_open=True), help="For how long, where the file does not say."),
    option("--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), help="Processes on each node."),
    option("--group-nodes", type=click.IntRange(2, MOST_RANKS), help="Nodes of a group; the mean if left out."),
    option("--window", metavar="TIME", help="Nodes that fail within it fail together.  [default: 60s]"),
    option("--toml", "toml_path", type=NewFile(), metavar="FILE", help="Write a machine's [failures]."),
    "json",
)
def fit(asked: Asked) -> int:
    """Mean times between failures, with 95 % bounds, and the shape of a Weibull distribution of the times between them.

    FILE is the output of sacct, LANL's or Philly's published log, or a table; DIR is the persistent
    directory of a job with every = "auto". docs/simulator.md has the formats.
    """
    trace = read_trace(asked.path, system=asked.system)
    for name in ("nodes", "days") if trace.observation.node_s else ():
        if given(name):
            seen = trace.observation
            why = f"the file says what was watched: {seen.nodes:,} nodes, {show_seconds(seen.seconds)}"
            raise no_effect(f"--{name}", why)
    days_s = None if asked.days is None else asked.days * DAY_S
    assumed = Assumed(days_s, asked.nodes, asked.ranks_per_node, asked.group_nodes, asked.seconds("window"))
    try:
        found = fit_trace(trace, assumed)
    except ValueError as error:
        what = "the trace does not say what was watched"
        raise ConfigError(what, expected=str(error), found=str(asked.path), where="deeppart-sim fit") from error
    toml = failures_toml(found, asked.path.name)
    if asked.toml_path is not None:
        asked.toml_path.write_text(toml, encoding="utf-8")

    def shown() -> Shown:
        yield from (_heading(found), *found.notes, *_findings(found))
        yield _table(found)
        yield toml.rstrip("\n")

    return emit(asked.values, lambda: _document(found), shown)


def _document(found: Fit) -> dict[str, Any]:
    """The result as JSON; what never happened has null for its time."""
    seen, at_once = found.trace.observation, found.together
    return {
        "format": "deeppart-sim-fit",
        "version": 1,
        "trace": found.trace.format,
        "watched": {"seconds": seen.seconds, "nodes": seen.nodes, "node_s": seen.node_s},
        "rates": found.rates,
        "shape": found.shape,
        "shapes": found.shapes,
        "together": {
            "window_s": at_once.window_s,
            "failures": at_once.failures,
            "sizes": at_once.sizes,
            "by_chance": at_once.by_chance,
            "p_value": at_once.p_value,
            "groups": at_once.groups,
            "correlated": at_once.correlated,
        },
        "group_nodes": found.group_nodes,
        "time_limits": found.time_limits,
        "waits_s": _waits(found),
        "notes": found.notes,
    }


def _waits(found: Fit) -> dict[str, float] | None:
    waits = found.trace.waits_s
    if not len(waits):
        return None
    return {"mean": float(np.mean(waits)), "median": float(np.median(waits)), "p90": float(np.quantile(waits, 0.9))}


def _heading(found: Fit) -> str:
    seen = found.trace.observation
    node_years = seen.node_s / (365.25 * DAY_S)
    watched = f"{seen.nodes:,} nodes, {show_seconds(seen.seconds)}, {node_years:,.3g} node years watched"
    return f"{found.trace.format}: {watched}"


def _findings(found: Fit) -> list[str]:
    """Sentences about what the numbers say."""
    lines, at_once = [], found.together
    if at_once.failures > 1:
        verdict = "more than chance" if at_once.correlated else "no more than chance"
        lines.append(
            f"several nodes within {show_seconds(at_once.window_s)}: {at_once.groups:,} times, where independent ones "
            f"would {at_once.by_chance:.2g} times (p = {at_once.p_value:.1g}): {verdict}"
        )
    if found.time_limits:
        lines.append(f"runs that had had their time: {found.time_limits:,}")
    if (waits := _waits(found)) is not None:
        lines.append("in the queue: " + ", ".join(f"{name} {show_seconds(value)}" for name, value in waits.items()))
    return lines


def _table(found: Fit) -> Table:
    rows = []
    for kind, one in found.rates.items():
        if kind == PREEMPTION and not one.events:
            continue
        words = _OF[kind] + (f" of {found.group_nodes} nodes" if kind == "group" else "")
        times = map(show_seconds, (one.mtbf_s, one.low_s, one.high_s))
        rows.append([words, f"{one.events:,}", *times, *_shape(found.shapes.get(kind))])
    breaks = {len(rows)}
    if found.shape is not None:
        rows.append(["all, one shape", f"{found.shape.failures:,}", "", "", "", *_shape(found.shape)])
    head = ["", "how many", "mean time between", "from", "to", "shape", "", ""]
    return Table("failures (95 % bounds)", head, rows, breaks=breaks)


def _shape(shape: Shape | None) -> tuple[str, str, str]:
    if shape is None:
        return "", "", ""
    verdict = "exponential not refused" if shape.exponential else "not exponential"
    return f"{shape.shape:.3g}", f"{shape.low:.3g} to {shape.high:.3g}", f"{verdict}, p = {shape.p_exponential:.1g}"
