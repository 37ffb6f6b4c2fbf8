"""``deeppart-sim calibrate``: measure this machine."""

from __future__ import annotations

from pathlib import Path

import click

from deeppart.cli.commands import GOOD

from ..machine.files import machine_toml
from ..machine.record import MOST_RANKS_PER_NODE, Machine
from ..measure.calibrate import calibrate as measure_machine
from ..measure.start import Directories
from ..report.charts import scaling_chart
from ..report.page import Contents, ladder, write_page
from ..timing.scale import study
from .command_line import command_line
from .consoles import console, status_console
from .machines import machine_document
from .options import DEFAULT_SEED, Output, measuring_options, one_node_job, output_options, print_json, write_csv
from .parameters import NewFile


@click.command(short_help="Measure this machine.")
@output_options
@click.option(
    "--out", type=NewFile(), default=Path("machine.toml"), show_default=True, help="The machine file to write."
)
@click.option("--name", default="this machine", show_default=True, help="Name of the machine.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, MOST_RANKS_PER_NODE),
    default=2,
    show_default=True,
    help="Ranks that will share a node.",
)
@click.option("--quick", is_flag=True, help="Less exact, in a quarter of the time.")
@measuring_options
def calibrate(output: Output, directories: Directories, out: Path, name: str, ranks_per_node: int, quick: bool) -> int:
    """Run real checkpoints here and write what they say of this machine to a file: copy, codec, storage, MPI, cost of a
    tensor. `machine` in a job's deeppart.toml names that file.

    What it cannot measure on one node is for you to fill in: the network between nodes, the whole file system,
    failures. --report and --png draw what the default state would take on one node of it; `deeppart-sim scale --machine
    FILE` is for other states.
    """
    with status_console().status("") as status:
        machine = measure_machine(
            name, ranks_per_node, directories, quick=quick, progress=lambda text: status.update(f"measuring: {text}")
        )
    text = machine_toml(machine)
    out.write_text(text, encoding="utf-8")
    document = machine_document(machine)
    if output.csv_path is not None:
        rows = [
            {"key": f"{table}.{key}", "value": value}
            for table, values in document.items()
            if isinstance(values, dict)
            for key, value in values.items()
        ]
        write_csv(output.csv_path, rows)
    if output.report_path is not None or output.png_path is not None:
        _draw(output, machine)
    if output.as_json:
        print_json(document)
    else:
        console().print(text)
        console().print(f"written: {out}")
    return GOOD


def _draw(output: Output, machine: Machine) -> None:
    """Draw what a job on the machine just measured would do."""
    job = one_node_job(machine)
    if output.report_path is not None:
        write_page(output.report_path, job, Contents(command=command_line()), DEFAULT_SEED)
    if output.png_path is not None:
        scaling_chart(study(job, ladder(job), ("deeppart", "rank0"), ("none",)), job).save(output.png_path)
