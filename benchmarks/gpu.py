"""Checkpoints of a state on a GPU: how long they block, how fast they copy, what they cost a training step.

    python benchmarks/gpu.py [--layers N] [--json FILE]

One process, one GPU, a model of BERT-large's size with fused AdamW (4.02 GB, with gradients 5.4 GB of GPU memory, and
twice the state of host memory). In one run, in turn: a bare copy from the GPU into pinned memory; checkpoints with
`capture="eager"` and `"lazy"`; training steps without checkpoints and with one. Local level on tmpfs, nothing
compressed; the last checkpoint is restored and every byte compared. Without a GPU it says so and exits 0. Exit code 1:
malfunction.
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

import torch
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.interference import Training
from benchmarks.machine import describe_machine

_TIMEOUT_S = 300.0
#: Steps between two checkpoints that are timed.
_STEPS = 8


def bare_copy_s(tensors: list[torch.Tensor]) -> float:
    """Seconds to copy all tensors into pinned memory that is there already, as fast as the device goes."""
    staging = torch.empty(max(tensor.numel() * tensor.element_size() for tensor in tensors), dtype=torch.uint8)
    staging = staging.pin_memory()

    def copy() -> None:
        for tensor in tensors:
            flat = tensor.detach().reshape(-1).view(torch.uint8)
            staging[: flat.numel()].copy_(flat, non_blocking=True)
        torch.cuda.synchronize()

    copy()
    return median(_timed(copy) for _ in range(3))


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def steps_s(training: Training, save: Callable[[], object] | None = None) -> float:
    """Seconds of some steps, with a checkpoint before the first."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    if save is not None:
        save()
    for _ in range(_STEPS):
        training.step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(training: Training, capture: str, directory: Path, rounds: int) -> dict[str, float]:
    """Checkpoints of one kind: medians."""
    config = deeppart.Config(
        persistent_dir=str(directory / "persistent"),
        local_dir=str(directory / "local"),
        every={"local": 1, "persistent": 0},
        capture=capture,
        compression="none",
        timeout=_TIMEOUT_S,
    )
    found: dict[str, list[float]] = {"blocked_s": [], "captured_s": [], "held_s": [], "slowdown": []}
    with deeppart.Checkpointer(config) as checkpointer:
        state = {"model": training.model.state_dict(), "optimizer": training.optimizer}
        number, pending = 0, None

        def save() -> None:
            nonlocal number, pending
            number += 1
            pending = checkpointer.checkpoint(state, number)

        for turn in range(rounds + 1):
            without_s = steps_s(training)
            blocked_s = _timed(save)
            assert pending is not None
            pending.wait("local", _TIMEOUT_S)
            report = pending.report
            with_s = steps_s(training, save)
            pending.wait("local", _TIMEOUT_S)
            if turn:  # the first one finds no pinned memory yet
                found["blocked_s"].append(blocked_s)
                found["captured_s"].append(report.stages_s["capture"] + report.stages_s.get("deferred", 0.0))
                found["held_s"].append(pending.report.held_s)
                found["slowdown"].append(with_s / without_s - 1)
        _compare(training, checkpointer, state)
    return {name: median(values) for name, values in found.items()}


def _compare(training: Training, checkpointer: deeppart.Checkpointer, state: dict[str, Any]) -> None:
    """Save, spoil, restore, compare."""
    parameters = list(training.model.parameters())
    checkpointer.checkpoint(state, 10**6).wait("local", _TIMEOUT_S)
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(-7.0)
    checkpointer.restore({"model": training.model, "optimizer": training.optimizer})
    for parameter, expected in zip(parameters, before, strict=True):
        if not torch.equal(parameter, expected):
            sys.exit("gpu: MALFUNCTION, other bytes came back")


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24, help="of BERT-large's 24")
    parser.add_argument("--tokens", type=int, default=2048, help="per step (default 2048)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: there is no GPU here that torch can use; nothing was measured")
        return 0
    training = Training(options.layers, 1024, 30522, options.tokens, device="cuda")
    for _ in range(3):
        training.step()
    tensors = list(training.model.parameters())
    moments = [value for each in training.optimizer.state.values() for value in each.values() if value.numel() > 1]
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *moments))
    copy_s = bare_copy_s([*tensors, *moments])
    results: dict[str, dict[str, float]] = {}
    for capture in ("eager", "lazy"):
        directory = Path(tempfile.mkdtemp(prefix="deeppart-gpu-", dir=options.tmpfs))
        try:
            results[capture] = measure(training, capture, directory, options.rounds)
        finally:
            shutil.rmtree(directory)
    table = Table(title=f"{torch.cuda.get_device_name()}, {nbytes / 1e9:.2f} GB", title_justify="left")
    columns = ("", "blocked, s", "captured, s", "GB/s", "of bare pinned copy", "step held, s", f"{_STEPS} steps slower")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_row("bare copy", "", f"{copy_s:.3f}", f"{nbytes / copy_s / 1e9:.1f}", "1.00", "", "")
    for capture, found in results.items():
        rate = nbytes / found["captured_s"] / 1e9
        table.add_row(
            capture,
            f"{found['blocked_s']:.4f}",
            f"{found['captured_s']:.3f}",
            f"{rate:.1f}",
            f"{copy_s / found['captured_s']:.2f}",
            f"{found['held_s']:.3f}",
            f"{found['slowdown']:+.1%}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json is not None:
        document = {"machine": describe_machine({}), "device": torch.cuda.get_device_name(), "bytes": nbytes}
        document |= {"bare_copy_s": copy_s, "results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
