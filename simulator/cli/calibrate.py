"""``deeppart-sim calibrate``: measure this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ..machine.files import machine_toml
from ..machine.record import MOST_RANKS_PER_NODE
from ..measure.calibrate import calibrate as measure_machine
from ..report.charts import scaling_chart
from ..report.page import job_page, ladder
from ..timing.scale import study
from .listing import machine_document
from .options import MEASURING, OUTPUT, Asked, NewFile, command, command_line, one_node_job, option
from .output import emit, status_console


@command(
    "Measure this machine.",
    *OUTPUT,
    option("--out", type=NewFile(), default=Path("machine.toml"), help="The machine file to write."),
    option("--name", default="this machine", help="Name of the machine."),
    option(
        "--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), default=2, help="Ranks that will share a node."
    ),
    *MEASURING,
)
def calibrate(asked: Asked) -> int:
    """Run real checkpoints here and write what they say of this machine to a file: copy, codec, storage, MPI, cost of a
    tensor. `machine` in a job's deeppart.toml names that file.

    What it cannot measure on one node is for you to fill in: the network between nodes, the whole file system,
    failures. --report and --png draw what the default state would take on one node of it; `deeppart-sim scale --machine
    FILE` is for other states.
    """
    with status_console().status("") as status:
        machine = measure_machine(
            asked.name, asked.ranks_per_node, asked.directories(), quick=asked.quick,
            progress=lambda text: status.update(f"measuring: {text}"),
        )  # fmt: skip
    text = machine_toml(machine)
    asked.out.write_text(text, encoding="utf-8")
    document = machine_document(machine)
    job = one_node_job(machine)
    return emit(
        asked.values, lambda: document, lambda: [text, f"written: {asked.out}"],
        rows=lambda: [
            {"key": f"{table}.{key}", "value": value}
            for table, values in document.items() if isinstance(values, dict)
            for key, value in values.items()
        ],
        chart=lambda: scaling_chart(study(job, ladder(job), ("deeppart", "rank0"), ("none",)), job),
        page=lambda: job_page(job, command_line()),
    )  # fmt: skip
