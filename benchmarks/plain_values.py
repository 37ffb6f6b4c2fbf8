"""What plain Python values in a state cost: long lists, dicts, and tables of them, beside torch.save and torch.load.

    python benchmarks/plain_values.py [--quick] [--only NAME,NAME] [--json FILE]

One process, files in memory (tmpfs). Of deeppart: what blocks at the first `checkpoint()`, which describes the state,
and at the second, which finds it as it was; the same checkpoint until it is complete; `restore` into a state of the
same shape, and `load`. torch.load reads with `weights_only=False`, the faster way. What comes back is compared with
what was saved. Exit code: 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine

_TIMEOUT_S = 300.0
_ROUNDS = 3

#: The columns: deeppart's, then the peer's.
BLOCKED, AGAIN, COMPLETE, RESTORE, LOAD = "first", "second", "complete", "restore", "load"
TORCH_SAVE, TORCH_LOAD = "torch.save", "torch.load"
COLUMNS = (BLOCKED, AGAIN, COMPLETE, RESTORE, LOAD, TORCH_SAVE, TORCH_LOAD)


def _mixed(count: int, draw: random.Random) -> list[Any]:
    kinds: tuple[Callable[[int], Any], ...] = (
        lambda number: number * 7,
        lambda number: f"token{number % 5000}",
        lambda number: None,
        lambda number: draw.random(),
    )
    return [kinds[number % 4](number) for number in range(count)]


def _documents(count: int, draw: random.Random) -> list[Any]:
    return [
        {"id": number, "tags": ["a", "b", f"c{number % 9}"], "meta": {"w": draw.random(), "parents": [number, 1]}}
        for number in range(count)
    ]


#: Makes a state's values, of a given number, from a source of random numbers.
SHAPES: dict[str, tuple[int, Callable[[int, random.Random], Any]]] = {
    "list of ints": (1_000_000, lambda count, draw: list(range(count))),
    "list of mixed values": (1_000_000, _mixed),
    "dict of ints": (1_000_000, lambda count, draw: {f"key{number}": number for number in range(count)}),
    "lists of 10 floats": (100_000, lambda count, draw: [[draw.random() for _ in range(10)] for _ in range(count)]),
    "dicts of 3 values": (
        100_000,
        lambda count, draw: [{"id": number, "loss": draw.random(), "name": f"s{number}"} for number in range(count)],
    ),
    "nested documents": (30_000, _documents),
}


def study(quick: bool, tmpfs: Path, only: frozenset[str] = frozenset(SHAPES)) -> dict[str, dict[str, Any]]:
    """Median seconds by shape and column, and the number of values."""
    found = {}
    for name, (count, make) in SHAPES.items():
        if name in only:
            count = count // 50 if quick else count
            state = {"values": make(count, random.Random(3)), "weights": torch.ones(10)}
            rounds = [_measure(state, tmpfs) for _ in range(1 if quick else _ROUNDS)]
            found[name] = {"count": count} | {each: median(one[each] for one in rounds) for each in COLUMNS}
    return found


def _measure(state: dict[str, Any], tmpfs: Path) -> dict[str, float]:
    live = copy.deepcopy(state)
    directory = Path(tempfile.mkdtemp(prefix="deeppart-plain-values-", dir=tmpfs))
    path = directory / "torch.pt"
    times: dict[str, float] = {}

    def timed(column: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        times[column] = time.perf_counter() - began
        return result

    def same(values: Any) -> None:
        assert values == state["values"], "what came back differs from what was saved"

    try:
        timed(TORCH_SAVE, lambda: torch.save(state, path))
        same(timed(TORCH_LOAD, lambda: torch.load(path, weights_only=False))["values"])
        config = deeppart.Config(persistent_dir=str(directory / "persistent"), timeout=_TIMEOUT_S)
        with deeppart.Checkpointer(config) as checkpointer:
            began = time.perf_counter()
            timed(BLOCKED, lambda: checkpointer.checkpoint(state, 1)).wait("persistent", _TIMEOUT_S)
            times[COMPLETE] = time.perf_counter() - began
            timed(AGAIN, lambda: checkpointer.checkpoint(state, 2)).wait("persistent", _TIMEOUT_S)
            timed(RESTORE, lambda: checkpointer.restore(live))
            same(live["values"])
        same(timed(LOAD, lambda: deeppart.load(config.persistent_dir))["values"])
    finally:
        shutil.rmtree(directory)
    return times


def show(found: dict[str, dict[str, Any]], console: Console) -> None:
    """Seconds by shape."""
    table = Table(title="plain values, seconds", title_justify="left")
    for column in ("state", "number", *COLUMNS):
        table.add_column(column, justify="left" if column == "state" else "right")
    for name, times in found.items():
        table.add_row(name, f"{times['count']:,}", *(f"{times[column]:.2f}" for column in COLUMNS))
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the values, one round")
    parser.add_argument("--only", default=",".join(SHAPES), metavar="NAME,NAME", help="these states (default: all)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    only = frozenset(options.only.split(","))
    if only - SHAPES.keys():
        parser.error(f"--only: {', '.join(sorted(only - SHAPES.keys()))}; there are {', '.join(SHAPES)}")
    found = study(options.quick, options.tmpfs, only)
    show(found, Console(width=None if sys.stdout.isatty() else 120))
    if options.json is not None:
        document = {"machine": describe_machine({"tmpfs": str(options.tmpfs)}), "plain_values": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
