"""``deeppart-sim calibrate``: measure this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ..machine.files import machine_toml
from ..machine.record import MOST_RANKS_PER_NODE
from ..measure.calibrate import calibrate as measure_machine
from ..measure.restarts import restart_of
from ..report.blocks import Code, Result, Section
from .listing import machine_document
from .options import MEASURING, Asked, NewFile, command, option


@command(
    "Measure this machine.",
    "json",
    option("--out", type=NewFile(), default=Path("machine.toml"), help="The machine file to write."),
    option("--name", default="this machine", help="Name of the machine."),
    option(
        "--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE), default=2, help="Ranks that will share a node."
    ),
    option(
        "--run-log",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The log of a job that has failed (deeppart run --log): from it the phases of a restart.",
    ),
    *MEASURING,
)
def calibrate(asked: Asked) -> Result:
    """Run real checkpoints here and write what they say of this machine to a file: copy, codec, storage, MPI, cost of a
    tensor; and print the `kappa` for a job's deeppart.toml.

    What it cannot measure on one node is for you to fill in: the network between nodes, the whole file system,
    failures. `deeppart-sim scale --machine FILE` shows what a state takes on it.
    """
    restart = None if asked.run_log is None else restart_of(asked.run_log)
    machine = measure_machine(
        asked.name, asked.ranks_per_node, asked.directories(), quick=asked.quick, progress=asked.status.update
    )
    machine = machine if restart is None else replace(machine, restart=restart)
    text = machine_toml(machine)
    asked.out.write_text(text, encoding="utf-8")
    kappa = Code("deeppart.toml", f"kappa = {round(machine.memory.kappa_bytes)}")
    return Result("", machine_document(machine), [Section("This machine", [Code(str(asked.out), text), kappa])])
