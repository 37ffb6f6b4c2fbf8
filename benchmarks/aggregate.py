"""A file for each rank, or one for each node: what the persistent level asks of the file system, and how long it takes.

    python benchmarks/aggregate.py [--ranks 32] [--node-size 8] [--scale 0.05] [--repeat 5] [--json FILE]

BERT-large by shapes with Adam, at a scale at which so many ranks fit on one machine, replicated, without a local level
and without compression. `files = "rank"` and `files = "node"` save it in turn, in drawn order, on nodes that are so
many ranks each. Shown are seconds from the call until the checkpoint is committed, of the slowest rank: median
(fastest, slowest); and, of one checkpoint more, what all ranks together have asked of the file system below
persistent_dir, the manifest included. The counts are exact; where ranks outnumber the processors, the seconds are
mostly those of ranks that wait for a processor. Exit code: 0 measured, 1 malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import Runs, Times, bert_settings
from benchmarks.commands import parser_for, run_command
from benchmarks.launching import ROOT, tunables_of
from benchmarks.workload import state_bytes

FILES = ("rank", "node")


def measure(options: argparse.Namespace) -> Times:
    """What was measured and counted.

    Raises:
        CannotRunError: there is no launcher. MalfunctionError: the ranks failed.
    """
    settings = bert_settings(options.ranks, options.scale, options.repeat, options.node_size)
    return Runs("aggregate_rank", options.disk, options.tmpfs, tunables_of(options)).run(ROOT, options.ranks, settings)


def show(found: Times, options: argparse.Namespace, console: Console) -> None:
    """A row for the time, and one for each count."""
    megabytes, nodes = state_bytes(options.scale) / 1e6, -(-options.ranks // options.node_size)
    title = f"{megabytes:.0f} MB on {options.ranks} ranks, {nodes} nodes: one checkpoint at the persistent level"
    table = Table(title=title, title_justify="left")
    for column in ("", *(f'files = "{files}"' for files in FILES)):
        table.add_column(column, justify="right")
    table.add_row("seconds", *(_seconds(found[files]) for files in FILES))
    counted = [what.removeprefix("rank: ") for what in found if what.startswith("rank: ")]
    for what in counted:
        table.add_row(what, *(f"{found.get(f'{files}: {what}', [0])[0]:.0f}" for files in FILES))
    console.print(table)


def _seconds(times: list[float]) -> str:
    return f"{median(times):.3f} ({min(times):.3f}-{max(times):.3f})"


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__)
    parser.add_argument("--ranks", type=int, default=32, help="MPI ranks (default 32)")
    parser.add_argument("--node-size", type=int, default=8, help="ranks taken for a node (default 8)")
    parser.add_argument("--scale", type=float, default=0.05, help="share of the state's 4.02 GB (default 0.05)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (default 5)")
    options = parser.parse_args()
    return run_command(options, lambda: measure(options), lambda found, console: show(found, options, console))


if __name__ == "__main__":
    sys.exit(main())
