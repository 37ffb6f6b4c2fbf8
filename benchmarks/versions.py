"""This checkout beside another one, in turn: what blocks training, and restores.

    git worktree add /tmp/before COMMIT
    python benchmarks/versions.py /tmp/before [--pairs 3] [--repeat 6] [--ranks 2] [--scale 1] [--json FILE]

BERT-large by shapes with Adam, replicated. Each pair starts the ranks twice, once with either library, in alternating
order: checkpoints to the local level, eager and lazy; then restores from local and from persistent, the page cache
warm; the first of each does not count. Shown are seconds of the slowest rank: the median of all (fastest, slowest), and
the ratio of the medians of each pair. Exit code: 0 measured, 1 malfunction, 2 cannot run here.
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

from benchmarks.checkout import BEFORE, NOW, Runs, Times, bert_settings, checkouts
from benchmarks.commands import parser_for, run_command
from benchmarks.launching import tunables_of


def compare(options: argparse.Namespace) -> list[dict[str, Times]]:
    """What was measured in each pair, of either checkout.

    Raises:
        CannotRunError: there is no launcher, or no other checkout. MalfunctionError: the ranks failed.
    """
    paths, runs = checkouts(options.before), Runs("versions_rank", options.disk, options.tmpfs, tunables_of(options))
    settings = bert_settings(options.ranks, options.scale, options.repeat)
    pairs: list[dict[str, Times]] = []
    for number in range(options.pairs):
        order = (BEFORE, NOW) if number % 2 == 0 else (NOW, BEFORE)
        pairs.append({which: runs.run(paths[which], options.ranks, settings) for which in order})
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
    return pairs


def show(pairs: list[dict[str, Times]], console: Console) -> None:
    """A row for each thing that was measured."""
    table = Table(title="seconds", title_justify="left")
    for column in ("", BEFORE, NOW, "now / before, pair by pair"):
        table.add_column(column, justify="right" if column else "left")
    for what in pairs[0][NOW]:
        cells = []
        for which in (BEFORE, NOW):
            times = [seconds for pair in pairs for seconds in pair[which][what]]
            cells.append(f"{median(times):.4f} ({min(times):.4f}-{max(times):.4f})")
        ratios = (median(pair[NOW][what]) / median(pair[BEFORE][what]) for pair in pairs)
        table.add_row(what, *cells, ", ".join(f"{ratio:.2f}" for ratio in ratios))
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__)
    parser.add_argument("before", type=Path, metavar="CHECKOUT", help="the other checkout of this repository")
    parser.add_argument("--pairs", type=int, default=3, help="how often both are started (default 3)")
    parser.add_argument("--repeat", type=int, default=6, help="times that count in each run (default 6)")
    parser.add_argument("--ranks", type=int, default=2, help="MPI ranks (default 2)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the state's 4.02 GB (default 1)")
    options = parser.parse_args()
    return run_command(options, lambda: compare(options), show, key="pairs")


if __name__ == "__main__":
    sys.exit(main())
