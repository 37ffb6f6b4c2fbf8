"""Whether compressing pays, by what storage takes: compression none, tensor, zstd and auto on levels of several speeds.

    python benchmarks/auto.py [--quick] [--json FILE]

One process saves a part of BERT-large by shapes with its Adam state to the persistent level, which is held back to a
bandwidth (``flush_bandwidth``) or not at all; all of it, every time. Everyone takes turns, in an order that changes,
with a checkpointer of its own; the first three rounds, in which auto learns and files are made, do not count. Shown are
the median seconds until the level is complete, beside those of none in the same round, and what is on storage. Exit
code: 0.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine
from benchmarks.workload import BERT_LAYERS, Workload, make_workload

COMPRESSIONS = ("none", "auto", "tensor", "zstd")
#: Bytes per second that storage takes; None for what it takes by itself.
BANDWIDTHS = (None, 1e9, 300e6, 100e6)
#: Rounds that count; where storage is slow, they differ less and take longer.
_ROUNDS = {None: 12, 1e9: 12, 300e6: 6, 100e6: 4}
_LEARNING = 3
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Row:
    """One setting on one storage.

    Attributes:
        bandwidth: bytes per second, or None for no limit.
        compression: the setting.
        seconds: until the level was complete, median.
        beside_none: of each round's seconds, divided by those of none in the same round, the median.
        nbytes: on storage.
        reasons: what auto says of its choice, in the last round.
    """

    bandwidth: float | None
    compression: str
    seconds: float
    beside_none: float
    nbytes: int
    reasons: tuple[str, ...]


def measure(workload: Workload, bandwidth: float | None, rounds: int, disk: Path) -> list[Row]:
    """All settings on storage of one speed."""
    found: dict[str, list[float]] = {compression: [] for compression in COMPRESSIONS}
    last: dict[str, deeppart.Report] = {}
    directory = Path(tempfile.mkdtemp(prefix="deeppart-auto-", dir=disk))
    try:
        with ExitStack() as stack:
            checkpointers = {each: stack.enter_context(_open(directory, each, bandwidth)) for each in COMPRESSIONS}
            for turn in range(_LEARNING + rounds):
                for compression in random.Random(turn).sample(COMPRESSIONS, len(COMPRESSIONS)):
                    pending = checkpointers[compression].checkpoint(workload.tree, turn)
                    pending.wait("persistent", _TIMEOUT_S)
                    last[compression] = pending.report
                    if turn >= _LEARNING:
                        found[compression].append(pending.report.levels["persistent"].seconds or 0.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return [
        Row(
            bandwidth,
            compression,
            median(seconds),
            median(mine / theirs for mine, theirs in zip(seconds, found["none"], strict=True)),
            last[compression].levels["persistent"].nbytes,
            last[compression].compression["persistent"],
        )
        for compression, seconds in found.items()
    ]


def _open(directory: Path, compression: str, bandwidth: float | None) -> deeppart.Checkpointer:
    config = deeppart.Config(
        persistent_dir=str(directory / compression),
        keep={"persistent": 1},
        compression=compression,
        flush_bandwidth=bandwidth,
        incremental=False,
        timeout=_TIMEOUT_S,
    )
    return deeppart.Checkpointer(config)


def run(quick: bool, disk: Path) -> list[Row]:
    """All settings on all storages."""
    workload = make_workload("bert-large+adam", 0.025 if quick else 0.15, BERT_LAYERS, seed=5)
    bandwidths = (300e6,) if quick else BANDWIDTHS
    return [row for each in bandwidths for row in measure(workload, each, 1 if quick else _ROUNDS[each], disk)]


def show(rows: list[Row], console: Console) -> None:
    """The table."""
    table = Table(title="seconds until complete, by what storage takes", title_justify="left")
    for column in ("storage", "compression", "seconds", "beside none", "on storage"):
        table.add_column(column, justify="left" if column in ("storage", "compression") else "right")
    for row in rows:
        storage = "as it is" if row.bandwidth is None else f"{row.bandwidth / 1e6:.0f} MB/s"
        target = " <= 1.05" if row.compression == "auto" else ""
        end = row.compression == COMPRESSIONS[-1]
        table.add_row(
            storage if row.compression == "none" else "",
            row.compression,
            f"{row.seconds:.3f}",
            f"{row.beside_none:.2f}{target}",
            f"{row.nbytes / 1e6:.1f} MB",
            end_section=end,
        )
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small state, one storage, one round")
    parser.add_argument("--disk", type=Path, default=Path("build"), help="where files go (default build/)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    options.disk.mkdir(parents=True, exist_ok=True)
    rows = run(options.quick, options.disk)
    show(rows, Console(width=None if sys.stdout.isatty() else 120))
    if options.json is not None:
        document: dict[str, Any] = {"machine": describe_machine({"disk": str(options.disk)})}
        document["rows"] = [asdict(row) for row in rows]
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
