"""``deeppart-sim fit``: failure rates of a machine from what has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from deeppart.model import show_seconds

from ..machine.record import DAY_S, MOST_RANKS_PER_NODE
from ..report.blocks import Block, Code, Items, Result, Section, Table
from ..traces.fit import Fit, failures_toml
from ..traces.fit import fit as fit_trace
from ..traces.read import read_trace
from ..traces.record import PREEMPTION
from .options import OUTPUT, Asked, NewFile, command, option
from .output import flat

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
    option("--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), help="Processes on each node."),
    option("--toml", "toml_path", type=NewFile(), metavar="FILE", help="Write a machine's [failures]."),
    *OUTPUT,
)
def fit(asked: Asked) -> Result:
    """Mean times between failures, with 95 % bounds.

    FILE is the output of sacct, or a table; DIR is the persistent directory of a job with every = "auto".
    docs/simulator.md has the formats.
    """
    found = fit_trace(read_trace(asked.path), asked.ranks_per_node)
    toml = failures_toml(found, asked.path.name)
    if asked.toml_path is not None:
        asked.toml_path.write_text(toml, encoding="utf-8")
    blocks: list[Block] = [_heading(found), Items([*found.notes, *_findings(found)]), _table(found)]
    rows = [flat(one) | {"failure": kind} for kind, one in found.rates.items()]
    sections = [Section("Failures", [*blocks, Code("for a machine file", toml.rstrip())])]
    return Result(f"Failures in {asked.path.name}", _document(found), sections, rows)


def _document(found: Fit) -> dict[str, Any]:
    """The result as JSON; what never happened has null for its time."""
    seen = found.trace.observation
    return {
        "format": "deeppart-sim-fit",
        "version": 1,
        "trace": found.trace.format,
        "watched": {"seconds": seen.seconds, "nodes": seen.nodes, "node_s": seen.node_s},
        "rates": found.rates,
        "group_nodes": found.group_nodes,
        "time_limits": found.time_limits,
        "waits_s": _waits(found),
        "notes": found.notes,
    }


def _waits(found: Fit) -> dict[str, float] | None:
    waits = found.trace.waits_s
    if not waits:
        return None
    return {"mean": float(np.mean(waits)), "median": float(np.median(waits)), "p90": float(np.quantile(waits, 0.9))}


def _heading(found: Fit) -> str:
    seen = found.trace.observation
    node_years = seen.node_s / (365.25 * DAY_S)
    watched = f"{seen.nodes:,} nodes, {show_seconds(seen.seconds)}, {node_years:,.3g} node years watched"
    return f"{found.trace.format}: {watched}"


def _findings(found: Fit) -> list[str]:
    """Sentences about what the numbers say."""
    lines = []
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
        rows.append([words, f"{one.events:,}", *map(show_seconds, (one.mtbf_s, one.low_s, one.high_s))])
    return Table("95 % bounds", ["", "how many", "mean time between", "from", "to"], rows)
