"""What it costs to save a collection, by its bytes and by its number of tensors: torch.save and deeppart.

    python benchmarks/serialization.py [--quick] [--json FILE] [--png FILE]

The study of the DeepPart thesis (Perello Bacardit, UPC 2023): serialization costs by size and by number of tensors
together, so shares must be balanced in both. One process saves collections of float32 tensors of equal length into
memory (tmpfs); for deeppart, the time until the local level is complete, and of it the time that blocks. To each,

    seconds = a + b * bytes + c * tensors

is fitted by least squares of the relative error, with a, b, c >= 0. c / b is what one more tensor costs in bytes:
what the partitioner calls kappa. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
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

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine

TORCH, COMPLETE, BLOCKED = "torch.save", "deeppart, complete", "deeppart, blocked"
_TIMEOUT_S = 300.0


def collection(nbytes: int, count: int) -> dict[str, torch.Tensor]:
    """Tensors of equal length, with room for ``nbytes`` bytes in all."""
    elements = max(1, nbytes // 4 // count)
    return {f"tensor{number}": torch.full((elements,), float(number)) for number in range(count)}


def study(quick: bool, tmpfs: Path) -> dict[str, Any]:
    """Measure all sizes and numbers of tensors, and fit."""
    sizes = (1 << 22, 1 << 24) if quick else (1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30)
    counts = (1, 100, 3000) if quick else (1, 10, 100, 1000, 10_000, 50_000)
    points: list[dict[str, Any]] = []
    for nbytes in sizes:
        for count in counts:
            if nbytes // count < 64:
                continue
            state = collection(nbytes, count)
            real = sum(tensor.nbytes for tensor in state.values())
            measured = _measure(state, 2 if quick else 5, tmpfs)
            points += [
                {"who": who, "bytes": real, "tensors": count, "seconds": seconds} for who, seconds in measured.items()
            ]
    fits = {who: fit([each for each in points if each["who"] == who]) for who in (TORCH, COMPLETE, BLOCKED)}
    return {"points": points, "fits": fits}


def fit(points: list[dict[str, Any]]) -> dict[str, float]:
    """Coefficients a (s), b (s per byte), c (s per tensor), and the median relative error of the fit."""
    from scipy.optimize import nnls

    seconds = np.array([each["seconds"] for each in points])
    columns = np.array([[1.0, each["bytes"], each["tensors"]] for each in points])
    scale = columns.max(axis=0)
    (a, b, c), _ = nnls(columns / scale / seconds[:, None], np.ones(len(points)))
    found = np.array([a, b, c]) / scale
    error = np.abs(columns @ found / seconds - 1)
    names = ("seconds", "seconds_per_byte", "seconds_per_tensor")
    return dict(zip(names, found.tolist(), strict=True)) | {"relative_error": float(np.median(error))}


def _measure(state: dict[str, torch.Tensor], rounds: int, tmpfs: Path) -> dict[str, float]:
    """Median seconds of each, in turn."""
    found: dict[str, list[float]] = {TORCH: [], COMPLETE: [], BLOCKED: []}
    directory = Path(tempfile.mkdtemp(prefix="deeppart-serialization-", dir=tmpfs))
    config = deeppart.Config(
        persistent_dir=str(directory / "persistent"),
        local_dir=str(directory / "local"),
        every={"local": 1, "persistent": 0},
        compression="none",
        incremental=False,  # the state stays as it is, and all of it is to be written
        timeout=_TIMEOUT_S,
    )
    path = directory / "torch.pt"
    try:
        with deeppart.Checkpointer(config) as checkpointer:
            for turn in range(rounds + 2):  # the first two find staging memory and files to write over
                torch_s = _timed(lambda: torch.save(state, path))
                path.unlink()
                began = time.perf_counter()
                pending = checkpointer.checkpoint(state, turn)
                blocked_s = time.perf_counter() - began
                pending.wait("local", _TIMEOUT_S)
                complete_s = time.perf_counter() - began
                if turn >= 2:
                    for who, seconds in ((TORCH, torch_s), (COMPLETE, complete_s), (BLOCKED, blocked_s)):
                        found[who].append(seconds)
    finally:
        shutil.rmtree(directory)
    return {who: median(times) for who, times in found.items()}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def show(study: dict[str, Any], console: Console) -> None:
    """The fits."""
    table = Table(title="seconds = a + b * bytes + c * tensors", title_justify="left")
    for column in ("who", "a, ms", "1 / b, GB/s", "c, us per tensor", "c / b, KiB per tensor", "median error"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for who, found in study["fits"].items():
        per_byte, per_tensor = found["seconds_per_byte"], found["seconds_per_tensor"]
        table.add_row(
            who,
            f"{1e3 * found['seconds']:.2f}",
            "-" if not per_byte else f"{1e-9 / per_byte:.2f}",
            f"{1e6 * per_tensor:.2f}",
            "-" if not per_byte else f"{per_tensor / per_byte / 1024:.1f}",
            f"{found['relative_error']:.0%}",
        )
    console.print(table)


def draw(study: dict[str, Any], path: Path) -> None:
    """Measured points and fitted lines, by number of tensors, a line per size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(study["fits"]), figsize=(15, 4.6), sharey=True, layout="constrained")
    for axis, (who, found) in zip(axes, study["fits"].items(), strict=True):
        points = [each for each in study["points"] if each["who"] == who]
        for number, size in enumerate(sorted({round(np.log2(each["bytes"])) for each in points})):
            mine = [each for each in points if round(np.log2(each["bytes"])) == size]
            counts = np.array([each["tensors"] for each in mine])
            axis.plot(counts, [each["seconds"] for each in mine], "o", color=f"C{number}", label=f"{2**size >> 20} MiB")
            fine = np.geomspace(counts.min(), counts.max(), 50)
            fitted = found["seconds"] + found["seconds_per_byte"] * 2.0**size + found["seconds_per_tensor"] * fine
            axis.plot(fine, fitted, "-", color=f"C{number}", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="tensors", title=who)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small collections, few of them")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it there (needs matplotlib)")
    options = parser.parse_args()
    found = study(options.quick, options.tmpfs)
    show(found, Console(width=None if sys.stdout.isatty() else 120))
    if options.json is not None:
        document = {"machine": describe_machine({"tmpfs": str(options.tmpfs)})} | found
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.png is not None:
        draw(found, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
