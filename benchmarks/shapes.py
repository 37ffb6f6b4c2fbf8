"""What blocks training, for states of many shapes: `checkpoint()` beside a bare copy of the same share.

    python benchmarks/shapes.py [--case NAME ...] [--scale 0.5] [--repeat 7] [--before CHECKOUT] [--json FILE]

One case after the other, eager, prepared (eager, after `prepare(state)`) and lazy: training steps, and after each a
checkpoint to the local level and a bare copy of this rank's share into warm memory, in drawn order. The copy is made by
the C library and by torch, and counts with the faster of the two. Nothing is set in the environment of the ranks: the
figures are those of a user who sets nothing. Shown are seconds of the slowest rank: a copy into fresh memory, made
before the first checkpoint and after it; the first checkpoint and the second, and after how long each was complete at
the local level; and the median of the later ones (fastest, slowest) beside the bare copy. `held` is what
`optimizer.step()` waited for a lazy copy when it came at once. With `--before`, another checkout is measured in turn.
Exit code: 0 measured, 1 malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import Runs, Times, checkouts
from benchmarks.commands import parser_for, run_command
from benchmarks.launching import CannotRunError, tunables_of


@dataclass(frozen=True)
class ShapeCase:
    """One state on some ranks.

    Attributes:
        name: for tables and for ``--case``.
        shape: which state: a function of :mod:`benchmarks.shapes_rank`.
        ranks: MPI ranks.
        about: what it is.
    """

    name: str
    shape: str
    ranks: int
    about: str


CASES = (
    ShapeCase("bert-2", "bert", 2, "BERT-large with Adam, 4.02 GB"),
    ShapeCase("bert-3", "bert", 3, "the same on more ranks than the two processors that issues were reported from"),
    ShapeCase("embedding-2", "embedding", 2, "one table of 3 GB and 2,000 tensors of 80 KB"),
    ShapeCase("experts-2", "experts", 2, "500 experts, 1,000 matrices of 2 MiB"),
    ShapeCase("own-2", "own", 2, "30 % of the leaves are different on each rank"),
    ShapeCase("small-1", "small", 1, "100,000 tensors of 4 KiB"),
    ShapeCase("small-2", "small", 2, "the same"),
    ShapeCase("small-4", "small", 4, "the same"),
)


WAYS = ("eager", "prepared", "lazy")


@dataclass(frozen=True)
class Order:
    """What the ranks of one run are to do.

    Attributes:
        shape, scale: the state; a scale of 1 is what :data:`CASES` says.
        capture: as in deeppart's configuration.
        prepares: ``prepare()`` is called, and what it begins is waited for.
        repeat: checkpoints that count as later ones.
        disk, tmpfs: empty directories.
    """

    shape: str
    scale: float
    capture: str
    prepares: bool
    repeat: int
    disk: str
    tmpfs: str


def measure(options: argparse.Namespace) -> dict[str, dict[str, Times]]:
    """By case and capture (and checkout, if there are two), what was measured.

    Raises:
        CannotRunError: there is no launcher, no such case, or no such checkout. MalfunctionError: the ranks failed.
    """
    known = {case.name: case for case in CASES}
    if unknown := sorted(set(options.case or ()) - set(known)):
        raise CannotRunError(f"no case {unknown[0]}; there are {', '.join(known)}")
    paths, runs = checkouts(options.before), Runs("shapes_rank", options.disk, options.tmpfs, tunables_of(options))
    found: dict[str, dict[str, Times]] = {}
    for case in (known[name] for name in options.case or known):
        found[case.name] = {}
        for way in WAYS:
            for which, path in paths.items():
                times = runs.run(path, case.ranks, _settings(options, case, way))
                found[case.name][way if len(paths) == 1 else f"{way}, {which}"] = times
        print(f"{case.name}: done", file=sys.stderr, flush=True)
    return found


def _settings(options: argparse.Namespace, case: ShapeCase, way: str) -> Callable[[str, str], str]:
    capture = "lazy" if way == "lazy" else "eager"
    order = partial(Order, case.shape, options.scale, capture, way == "prepared", options.repeat)
    return lambda disk, tmpfs: json.dumps(asdict(order(disk, tmpfs)))


def bare_copy_s(times: Times) -> float:
    """The faster of the ways to copy, by their medians."""
    return min(median(times["memmove"]), median(times["torch"]))


def show(found: dict[str, dict[str, Times]], console: Console) -> None:
    """A row for each case and capture."""
    table = Table(title="seconds blocked; of the first two checkpoints, until local, too", title_justify="left")
    for column in (
        "case",
        "",
        "fresh copies",
        "first, local",
        "second, local",
        "bare copy",
        "later",
        "x",
        "planning",
        "held",
    ):
        table.add_column(column, justify="right")
    for case, by_way in found.items():
        for way, times in by_way.items():
            first, second, *later = times["blocked"]
            bare, middle, local = bare_copy_s(times), median(later), times["local"]
            table.add_row(
                case,
                way,
                ", ".join(f"{fresh:.2f}" for fresh in times["fresh"]),
                f"{first:.3f}, {local[0]:.2f}",
                f"{second:.3f}, {local[1]:.2f}",
                f"{bare:.4f}",
                f"{middle:.4f} ({min(later):.4f}-{max(later):.4f})",
                f"{middle / bare:.2f}",
                f"{median(times['planning'][2:]):.4f}",
                f"{median(times['held'][2:]):.4f}",
            )
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__)
    parser.add_argument(
        "--case", action="append", help="only this one; again for more: " + ", ".join(c.name for c in CASES)
    )
    parser.add_argument(
        "--scale", type=float, default=0.5, help="share of the bytes, or of 100,000 tensors (default 0.5)"
    )
    parser.add_argument("--repeat", type=int, default=7, help="checkpoints after the second (default 7)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, measured in turn")
    options = parser.parse_args()
    return run_command(options, lambda: measure(options), show)


if __name__ == "__main__":
    sys.exit(main())
