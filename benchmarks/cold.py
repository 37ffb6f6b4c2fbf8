"""Restarts from the persistent level whose files are not in memory, beside DCP and the disk.

    python benchmarks/cold.py [--ranks 2] [--scale 0.5] [--repeat 5] [--before CHECKOUT] [--json FILE]

BERT-large by shapes with Adam, replicated. In each round deeppart without a local level, with one in memory, and DCP,
in drawn order, save the state and restore it: at once, with the page cache as the save has left it; then with none of
the persistent files in it; then once more, with all of them in it. None is asked for by `posix_fadvise(2)`, and
checked: a file of which a page is still there is a malfunction. Beside them stands the time in which the ranks read
deeppart's files around the page cache, several requests at a time, each its own: right after they were written, and
again. Shown are seconds of the slowest rank, median (fastest, slowest). Exit code: 0 measured, 1 malfunction, 2 cannot
run here.
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

from benchmarks.checkout import Runs, Times, bert_settings, checkouts
from benchmarks.commands import parser_for, run_command
from benchmarks.launching import tunables_of
from benchmarks.workload import state_bytes


def measure(options: argparse.Namespace) -> dict[str, Times]:
    """By checkout, what was measured.

    Raises:
        CannotRunError: there is no launcher, or no such checkout. MalfunctionError: the ranks failed.
    """
    paths, runs = checkouts(options.before), Runs("cold_rank", options.disk, options.tmpfs, tunables_of(options))
    settings = bert_settings(options.ranks, options.scale, options.repeat)
    return {which: runs.run(path, options.ranks, settings) for which, path in paths.items()}


def show(found: dict[str, Times], options: argparse.Namespace, console: Console) -> None:
    """A row for each state of the page cache."""
    gigabytes = state_bytes(options.scale) / 1e9
    title = f"{gigabytes:.2f} GB from the persistent level on {options.ranks} ranks, seconds"
    table = Table(title=title, title_justify="left")
    for column in ("", "page cache", "deeppart", "with a local level", "dcp.load", "deeppart / dcp", "the disk"):
        table.add_column(column, justify="right")
    for which, times in found.items():
        for state in ("left", "cold", "warm"):
            ours, local, theirs = (times[f"{name} {state}"] for name in ("deeppart", "local", "dcp"))
            ratio = f"{median(ours) / median(theirs):.2f}"
            disk = _cell(times[f"disk {state}"]) if state != "warm" else ""
            table.add_row(which, state, _cell(ours), _cell(local), _cell(theirs), ratio, disk)
    console.print(table)


def _cell(times: list[float]) -> str:
    return f"{median(times):.3f} ({min(times):.3f}-{max(times):.3f})"


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="MPI ranks (default 2)")
    parser.add_argument("--scale", type=float, default=0.5, help="share of the state's 4.02 GB (default 0.5)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, measured after it")
    options = parser.parse_args()
    return run_command(options, lambda: measure(options), lambda found, console: show(found, options, console))


if __name__ == "__main__":
    sys.exit(main())
