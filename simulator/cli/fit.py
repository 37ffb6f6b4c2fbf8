"""``deeppart-sim fit``: failure rates of a machine from what has failed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.errors import ConfigError
from deeppart.model.units import show_seconds

from ..machine.record import DAY_S, MOST_RANKS_PER_NODE
from ..traces.fit import Assumed, Fit, Rate, Shape, failures_toml
from ..traces.fit import fit as fit_trace
from ..traces.read import read_trace
from ..traces.record import PREEMPTION
from .consoles import console, table
from .options import MOST_RANKS, print_json, read_time
from .parameters import FiniteRange, NewFile, given, no_effect
from .traces import system_option

_OF = {
    "process": "of a process",
    "node": "of a node",
    "group": "of a group",
    "system": "of everything",
    PREEMPTION: "preemption of a job",
}


@click.command(short_help="Fit failure rates to a trace, or to a job's own runs.")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE|DIR")
@system_option
@click.option("--nodes", type=click.IntRange(1, MOST_RANKS), help="That were watched, where the file does not say.")
@click.option("--days", type=FiniteRange(min=0, min_open=True), help="For how long, where the file does not say.")
@click.option("--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), help="Processes on each node.")
@click.option("--group-nodes", type=click.IntRange(2, MOST_RANKS), help="Nodes of a group; the mean if left out.")
@click.option("--window", metavar="TIME", help="Nodes that fail within it fail together.  [default: 60s]")
@click.option("--toml", "toml_path", type=NewFile(), metavar="FILE", help="Write a machine's [failures].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def fit(
    path: Path,
    system: str | None,
    nodes: int | None,
    days: float | None,
    ranks_per_node: int | None,
    group_nodes: int | None,
    window: str | None,
    toml_path: Path | None,
    as_json: bool,
) -> int:
    """Mean times between failures, with 95 % bounds, and the shape of a Weibull distribution of the times between them.

    FILE is the output of sacct, LANL's or Philly's published log, or a table; DIR is the persistent
    directory of a job with every = "auto". docs/simulator.md has the formats.
    """
    trace = read_trace(path, system=system)
    if trace.observation.node_s:
        for option, name in (("--nodes", "nodes"), ("--days", "days")):
            if given(name):
                raise no_effect(option, f"the file says what was watched: {_watched(trace.observation.nodes, trace)}")
    window_s = None if window is None else read_time(window, "--window")
    assumed = Assumed(None if days is None else days * DAY_S, nodes, ranks_per_node, group_nodes, window_s)
    try:
        found = fit_trace(trace, assumed)
    except ValueError as error:
        raise ConfigError(
            "the trace does not say what was watched", expected=str(error), found=str(path), where="deeppart-sim fit"
        ) from error
    toml = failures_toml(found, path.name)
    if toml_path is not None:
        toml_path.write_text(toml, encoding="utf-8")
    if as_json:
        print_json(document(found))
        return GOOD
    out = console()
    out.print(_heading(found), soft_wrap=True)
    for note in (*found.notes, *_findings(found)):
        out.print(note, soft_wrap=True)
    out.print(_table(found))
    click.echo(toml, nl=False)
    return GOOD


def document(found: Fit) -> dict[str, Any]:
    """The result as JSON. JSON has no infinity: what never happened has null for its time."""
    seen = found.trace.observation
    return {
        "format": "deeppart-sim-fit",
        "version": 1,
        "trace": found.trace.format,
        "watched": {"seconds": seen.seconds, "nodes": seen.nodes, "node_s": seen.node_s},
        "rates": {kind: _finite(asdict(one)) for kind, one in found.rates.items()},
        "shape": None if found.shape is None else asdict(found.shape),
        "shapes": {kind: asdict(shape) for kind, shape in found.shapes.items()},
        "together": asdict(found.together) | {"groups": found.together.groups, "correlated": found.together.correlated},
        "group_nodes": found.group_nodes,
        "time_limits": found.time_limits,
        "waits_s": _waits(found),
        "notes": list(found.notes),
    }


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in fields.items()}


def _waits(found: Fit) -> dict[str, float] | None:
    waits = found.trace.waits_s
    if not len(waits):
        return None
    return {"mean": float(np.mean(waits)), "median": float(np.median(waits)), "p90": float(np.quantile(waits, 0.9))}


# --- showing ----------------------------------------------------------------------------------------------------------


def _watched(nodes: int, trace: Any) -> str:
    return f"{nodes:,} nodes, {show_seconds(trace.observation.seconds)}"


def _heading(found: Fit) -> str:
    seen = found.trace.observation
    node_years = seen.node_s / (365.25 * DAY_S)
    return f"{found.trace.format}: {_watched(seen.nodes, found.trace)}, {node_years:,.3g} node years watched"


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
        shown = ", ".join(f"{name} {show_seconds(value)}" for name, value in waits.items())
        lines.append(f"in the queue: {shown}")
    return lines


def _table(found: Fit) -> Table:
    listing = table("failures (95 % bounds)", ["", "how many", "mean time between", "from", "to", "shape", "", ""])
    for kind, one in found.rates.items():
        if kind == PREEMPTION and not one.events:
            continue
        words = _OF[kind] + (f" of {found.group_nodes} nodes" if kind == "group" else "")
        listing.add_row(words, f"{one.events:,}", *_times(one), *_shape(found.shapes.get(kind)))
    if found.shape is not None:
        listing.add_section()
        listing.add_row("all, one shape", f"{found.shape.failures:,}", "", "", "", *_shape(found.shape))
    return listing


def _times(one: Rate) -> tuple[str, str, str]:
    return show_seconds(one.mtbf_s), show_seconds(one.low_s), show_seconds(one.high_s)


def _shape(shape: Shape | None) -> tuple[str, str, str]:
    if shape is None:
        return "", "", ""
    verdict = "exponential not refused" if shape.exponential else "not exponential"
    return f"{shape.shape:.3g}", f"{shape.low:.3g} to {shape.high:.3g}", f"{verdict}, p = {shape.p_exponential:.1g}"
