"""``deeppart-sim validate``: predictions against the library itself, on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from deeppart.cli.commands import GOOD, NOT_GOOD
from deeppart.model import LEVELS
from deeppart.model.units import show_bytes, show_rate, show_seconds

from ..machine.files import read_machine
from ..machine.record import Machine
from ..measure.calibrate import calibrate
from ..measure.start import Directories
from ..measure.validate import MEDIAN_TARGET, WORST_TARGET, Comparison, Validation, cases_of, shards_of
from ..measure.validate import validate as compare
from ..report.charts import validation_chart
from ..report.page import Contents, write_page
from ..workload.layout import Layout, read_layout
from .command_line import command_line
from .consoles import console, status_console, table
from .options import (
    DEFAULT_SEED,
    Output,
    counts,
    measuring_options,
    one_node_job,
    output_options,
    print_json,
    write_csv,
)


@click.command(short_help="Compare predictions with real checkpoints.")
@output_options
@click.option(
    "--machine",
    metavar="FILE",
    help="This machine, from `deeppart-sim calibrate`; if left out, it is calibrated before, for each number of ranks.",
)
@click.option("--ranks", default="1,2,4", show_default=True, metavar="N,N,...", help="Numbers of ranks.")
@click.option(
    "--passes", type=click.IntRange(min=1), default=1, show_default=True, help="Number of calibrations and comparisons."
)
@click.option("--quick", is_flag=True, help="Fewer and smaller checkpoints.")
@click.option(
    "--only", multiple=True, metavar="KIND", help="Kinds of checkpoints, as in the first column; may be given again."
)
@click.option("--layout", metavar="LAYOUT", help="Divide tensors among ranks: fsdp, hsdp=N or tp=N.  [default: do not]")
@measuring_options
def validate(
    output: Output,
    directories: Directories,
    machine: str | None,
    ranks: str,
    passes: int,
    quick: bool,
    only: tuple[str, ...],
    layout: str | None,
) -> int:
    """Run real checkpoints under mpirun, predict each from a calibration made before, and compare.

    Without --machine it is calibrated again for each pass. "spread" is how far apart the middle half of the measured
    times lies, and "varied" how far the passes' own medians do: an error that is smaller may be the measurement's. Exit
    code 1 if half of the errors are above 5 % or one is above 15 %.
    """
    known = None if machine is None else read_machine(machine)
    used: dict[int, Machine] = {}
    numbers = counts(ranks, "--ranks")
    cases_of(only, quick=quick)
    divided = Layout() if layout is None else read_layout(layout, "--layout")
    for count in numbers:
        shards_of(divided, count)  # before minutes of calibration
    with status_console().status("") as status:

        def machine_for(count: int) -> Machine:
            used[count] = known or calibrate(
                "this machine", count, directories, quick=quick,
                progress=lambda text: status.update(f"calibrating for {count}: {text}"),
            )  # fmt: skip
            return used[count]

        found = compare(
            machine_for, directories, numbers, layout=divided, passes=passes, quick=quick, kinds=only,
            progress=lambda text: status.update(f"checkpoints: {text}"),
        )  # fmt: skip
    if output.csv_path is not None:
        write_csv(output.csv_path, [row_of(each) for each in found.comparisons])
    if output.report_path is not None:
        job = one_node_job(used[max(used)])
        rows = [_HEAD, *(_cells(each) for each in found.comparisons)]
        write_page(
            output.report_path,
            job,
            Contents(extra=(_title(found), rows), validation=found, command=command_line()),
            DEFAULT_SEED,
        )
    if output.png_path is not None:
        validation_chart(found).save(output.png_path)
    if output.as_json:
        print_json(
            {
                "format": "deeppart-sim-validation",
                "version": 1,
                "layout": str(divided),
                "comparisons": [row_of(each) for each in found.comparisons],
                "median_error": found.median_error,
                "worst_error": found.worst_error,
                "missed": len(found.missed),
                "missed_beyond_noise": len(found.of_the_model),
                "met": found.met,
            }
        )
    else:
        console().print(_table(found))
    return GOOD if found.met else NOT_GOOD


def row_of(comparison: Comparison) -> dict[str, Any]:
    """A comparison as one flat row."""
    return asdict(comparison) | {"noise": comparison.noise, "error": comparison.error}


_WHAT_WORDS = {"restore": "until restored", "trained": "training, with a checkpoint"}
_HEAD = [
    "kind",
    "ranks",
    "state",
    "tensors",
    "flush limit",
    "what",
    "predicted",
    "measured",
    "least",
    "most",
    "spread",
    "varied",
    "error",
]


def _table(found: Validation) -> Table:
    listing = table(_title(found), _HEAD, left=1)
    before = 0
    for each in found.comparisons:
        if before and each.ranks != before:
            listing.add_section()
        before = each.ranks
        style = "red" if abs(each.error) > WORST_TARGET else "yellow" if abs(each.error) > MEDIAN_TARGET else ""
        listing.add_row(*_cells(each), style=style)
    return listing


def _title(found: Validation) -> str:
    return (
        f"predicted and measured: median error {found.median_error:.0%} (target {MEDIAN_TARGET:.0%}), "
        f"worst {found.worst_error:.0%} (target {WORST_TARGET:.0%}); {len(found.missed)} of {len(found.comparisons)} "
        f"above that, {len(found.of_the_model)} of them by more than measurements of the same differ"
    )


def _cells(each: Comparison) -> list[str]:
    limit = "" if each.flush_bandwidth is None else show_rate(each.flush_bandwidth)
    times = [show_seconds(value) for value in (each.predicted_s, each.measured_s, each.least_s, each.most_s)]
    what = f"until {each.what}" if each.what in LEVELS else _WHAT_WORDS.get(each.what, each.what)
    return [
        each.kind,
        str(each.ranks),
        show_bytes(each.nbytes),
        f"{each.tensors:,}",
        limit,
        what,
        *times,
        f"{each.spread:.0%}",
        f"{each.varied:.0%}",
        f"{each.error:+.0%}",
    ]
