"""Benchmarks of DCP whose ranks are spawned here: their common arguments, and one table for each number of ranks."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.multiprocessing.spawn import spawn

from benchmarks.machine import describe_machine


def parser_of(description: str | None, not_counted: str) -> argparse.ArgumentParser:
    """The arguments that all of them have.

    Args:
        not_counted: rounds before those of ``--repeat``: "one that does".
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small states, one round")
    parser.add_argument("--repeat", type=int, default=5, help=f"rounds, after {not_counted} not count (default 5)")
    parser.add_argument("--ranks", default="2,4", metavar="N,N", help="numbers of ranks (default 2,4)")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


def measure_each(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[int, int, argparse.Namespace, Path], None],
    show: Callable[[dict[str, Any], int, Console], None],
) -> int:
    """Measure on each number of ranks, and show it; returns the exit code.

    Args:
        measure: what a rank does, given its number, how many there are, and where rank 0 leaves the results.
    """
    document: dict[str, Any] = {"machine": describe_machine({"files": str(options.directory)})}
    console = Console(width=None if sys.stdout.isatty() else 120)
    for ranks in map(int, options.ranks.split(",")):
        directory = Path(tempfile.mkdtemp(prefix=f"deeppart-{name}-", dir=options.directory))
        try:
            results = directory / "results.json"
            spawn(measure, (ranks, options, results), ranks)
            document[str(ranks)] = json.loads(results.read_text(encoding="utf-8"))
        finally:
            shutil.rmtree(directory)
        show(document[str(ranks)], ranks, console)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0
