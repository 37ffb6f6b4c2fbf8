"""``deeppart-sim scale``: one checkpoint on more and more ranks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.model import LEVELS
from deeppart.model.units import show_bytes, show_seconds
from deeppart.partition import STRATEGIES

from ..advise.text import what_if
from ..report.charts import scaling_chart
from ..report.page import Contents, write_page
from ..timing.scale import Point, study
from ..timing.stages import STAGES, Job
from .command_line import command_line
from .consoles import console, status_console, table
from .options import Common, common_options, counts, job_options, make_job, print_json, refuse_seed, write_csv
from .parameters import given, no_effect

_LADDER = "1,2,4,8,16,32,64,128,256,512,1024"


@click.command(short_help="Show how one checkpoint scales with ranks.")
@common_options
@click.option("--ranks", default=_LADDER, show_default=True, metavar="N,N,...", help="Numbers of ranks.")
@click.option(
    "--strategy", default="deeppart,rank0", show_default=True, metavar="NAME,...", help=f"Of {', '.join(STRATEGIES)}."
)
@click.option("--with-compression", is_flag=True, help="Also with the codec made for tensors.")
@click.option("--serial", is_flag=True, help="Show stages one after the other, instead of overlapped.")
@job_options
def scale(common: Common, ranks: str, strategy: str, with_compression: bool, serial: bool, **options: Any) -> int:
    """Time of each stage and level of one checkpoint, speed-up and efficiency, against the number of ranks."""
    numbers = counts(ranks, "--ranks")
    strategies = [name.strip() for name in strategy.split(",")]
    refuse_seed(common)
    if given("flush_share") and common.report_path is None:
        raise no_effect("--flush-share", "it limits how often checkpoints are flushed, for the advice of --report")
    job = make_job(common.read_state(), common.read_machine(), max(numbers), options)
    if with_compression and job.compression == "tensor":
        raise no_effect("--with-compression", "--compression tensor has that already")
    if with_compression and not job.machine.codecs:
        raise no_effect("--with-compression", f"{job.machine.name} has no codec")
    if serial and common.as_json:
        raise no_effect("--serial", "the JSON document has both", "leave it out; it has stages and serial_s")
    compressions = list(dict.fromkeys([job.compression, *(["tensor"] if with_compression else [])]))
    with status_console().status("") as status:
        points = study(job, numbers, strategies, compressions, lambda text: status.update(f"partitioning: {text}"))
    if common.csv_path is not None:
        write_csv(common.csv_path, [row_of(point) for point in points])
    if common.png_path is not None:
        scaling_chart(points, job).save(common.png_path)
    if common.report_path is not None:
        write_page(common.report_path, job, Contents(points=points, command=command_line()), common.seed)
    if common.as_json:
        print_json(document(job, points))
    else:
        out = console()
        out.print(heading(job))
        for note in what_if(job.machine, job.nodes):
            out.print(note, soft_wrap=True)
        out.print(_table(points, serial))
    return GOOD


def heading(job: Job) -> str:
    """A line that says what is simulated."""
    state = job.state
    size = f"{state.name}: {show_bytes(state.nbytes)} in {len(state.tensors):,} leaves, {state.layout}"
    return f"{size}; on {job.machine.name}, {job.ranks_per_node} ranks per node"


def document(job: Job, points: list[Point]) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "format": "deeppart-sim-scale",
        "version": 1,
        "state": describe_state(job),
        "machine": job.machine.name,
        "ranks_per_node": job.ranks_per_node,
        "notes": what_if(job.machine, job.nodes),
        "points": [asdict(point) for point in points],
    }


def describe_state(job: Job) -> dict[str, Any]:
    """The state, for documents."""
    state = job.state
    return {
        "name": state.name,
        "bytes": state.nbytes,
        "leaves": len(state.tensors),
        "parameters": state.parameters,
        "layout": str(state.layout),
        "source": state.source,
    }


def row_of(point: Point) -> dict[str, Any]:
    """A point as one flat row."""
    row = {name: value for name, value in asdict(point).items() if not isinstance(value, dict)}
    row |= {f"{name}_s": point.stages[name] for name in STAGES}
    return row | {f"until_{level}_s": point.complete_s.get(level, "") for level in LEVELS}


def _table(points: list[Point], serial: bool) -> Table:
    levels = [level for level in LEVELS if any(level in p.complete_s for p in points)]
    names = ["ranks", "strategy", "codec", "blocked", "copy", "encode"]
    names += ["local", "partner", "parity", "flush", "all"] if serial else [f"> {level}" for level in levels]
    names += ["speed-up", "efficiency", "most / mean", "largest"]
    title = "stages one after the other" if serial else "stages overlapped; > level: until it is complete there"
    found = table(title, names, left=3)
    before = 0
    for point in points:
        if before and point.ranks != before:
            found.add_section()
        before = point.ranks
        stages = point.stages
        cells = [f"{point.ranks:,}", point.strategy, point.compression, show_seconds(point.blocked_s)]
        cells += [show_seconds(stages["capture"]), show_seconds(stages["encode"]) if stages["encode"] else ""]
        if serial:
            shown = [stages[name] for name in LEVELS] + [point.serial_s]
            cells += [show_seconds(seconds) if seconds else "" for seconds in shown]
            speedup, efficiency = point.serial_speedup, point.serial_efficiency
        else:
            cells += [show_seconds(point.complete_s[level]) if level in point.complete_s else "" for level in levels]
            speedup, efficiency = point.blocked_speedup, point.blocked_efficiency
        cells += [f"{speedup:.3g}x", "" if efficiency is None else f"{efficiency:.0%}"]
        cells += [f"{point.imbalance:.3f}", show_bytes(point.largest_bytes)]
        found.add_row(*cells)
    return found
