"""Restores of one state on ever more ranks, beside a bare copy of the same bytes.

    python benchmarks/restore_scale.py [--ranks 8,16,32,64] [--scale 0.011] [--node-size N] [--before CHECKOUT]

BERT-large by shapes with Adam, at a scale at which 64 ranks fit on one machine, replicated, saved by as many ranks as
restore it. Every rank gets the whole state, so the bytes that are copied grow with the ranks, and where these outnumber
the processors so does the time; beside each restore stands a copy of the whole state from warm memory on every rank at
once. Shown are seconds until the last rank has finished: the median (fastest, slowest), and as a multiple of the copy.
The page cache is warm. With `--before`, another checkout is measured in turn. Exit code: 0 measured, 1 malfunction, 2
cannot run here.
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


def measure(options: argparse.Namespace) -> dict[int, dict[str, Times]]:
    """By number of ranks and checkout, what was measured.

    Raises:
        CannotRunError: there is no launcher, or no such checkout. MalfunctionError: the ranks failed.
    """
    paths, runs = (
        checkouts(options.before),
        Runs("restore_scale_rank", options.disk, options.tmpfs, tunables_of(options)),
    )
    found: dict[int, dict[str, Times]] = {}
    for ranks in map(int, options.ranks.split(",")):
        settings = bert_settings(ranks, options.scale, options.repeat, options.node_size)
        found[ranks] = {which: runs.run(path, ranks, settings) for which, path in paths.items()}
        print(f"{ranks} ranks: done", file=sys.stderr, flush=True)
    return found


def show(found: dict[int, dict[str, Times]], options: argparse.Namespace, console: Console) -> None:
    """A row for each number of ranks and checkout."""
    megabytes = state_bytes(options.scale) / 1e6
    table = Table(title=f"{megabytes:.0f} MB restored on every rank, seconds (times the copy)", title_justify="left")
    for column in ("ranks", "", "bare copy", "from local", "from persistent"):
        table.add_column(column, justify="right")
    for ranks, by_checkout in found.items():
        for which, times in by_checkout.items():
            copy = median(times["copy"])
            cells = [f"{copy:.3f} ({min(times['copy']):.3f}-{max(times['copy']):.3f})"]
            for level in ("local", "persistent"):
                seconds = times[level]
                middle = median(seconds)
                cells.append(f"{middle:.3f} ({min(seconds):.3f}-{max(seconds):.3f}), {middle / copy:.2f}")
            table.add_row(str(ranks), which, *cells)
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__)
    parser.add_argument("--ranks", default="8,16,32,64", help="comma separated (default 8,16,32,64)")
    parser.add_argument("--scale", type=float, default=0.011, help="share of the state's 4.02 GB (default 0.011)")
    parser.add_argument("--repeat", type=int, default=5, help="restores that count (default 5)")
    parser.add_argument("--node-size", type=int, default=0, help="ranks taken for a node (default: by their names)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, measured in turn")
    options = parser.parse_args()
    return run_command(options, lambda: measure(options), lambda found, console: show(found, options, console))


if __name__ == "__main__":
    sys.exit(main())
