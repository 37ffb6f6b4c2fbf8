"""What signed checkpoints cost (`sign_key_file`): the same state saved and restored with a key and without, in turn.

    python benchmarks/signing.py [--gigabytes G] [--rounds N] [--disk DIR] [--json FILE]

One process, random float32 values that change before each checkpoint, uncompressed, written to a directory on disk, no
local level. Shown are seconds, and seconds of processor time of the whole process from the call to the end of the
level. Every restored byte is compared. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine

_TIMEOUT_S = 600.0
_TENSORS = 64

BLOCKED, SAFE, SAVE_CPU, RESTORE, RESTORE_CPU = (
    "blocked",
    "until safe on disk",
    "save, processor time",
    "restore",
    "restore, processor time",
)
COLUMNS = (BLOCKED, SAFE, SAVE_CPU, RESTORE, RESTORE_CPU)
NOT_SIGNED, SIGNED = "not signed", "signed"


def study(state_bytes: int, rounds: int, disk: Path) -> dict[str, dict[str, list[float]]]:
    """Seconds of each round by kind and column, after a checkpoint and a restore that do not count."""
    directory = Path(tempfile.mkdtemp(prefix="deeppart-signing-", dir=disk))
    found: dict[str, dict[str, list[float]]] = {kind: {each: [] for each in COLUMNS} for kind in (NOT_SIGNED, SIGNED)}
    live = [torch.randn(state_bytes // 4 // _TENSORS) for _ in range(_TENSORS)]
    key = directory / "key"
    try:
        key.touch(mode=0o600)
        key.write_text(os.urandom(32).hex() + "\n", encoding="ascii")
        with (
            _checkpointer(directory / "plain", None) as plain,
            _checkpointer(directory / "signed", key) as signed,
        ):
            for step in range(1, rounds + 2):
                for kind, checkpointer in ((NOT_SIGNED, plain), (SIGNED, signed)):
                    times = _measure(checkpointer, live, step)
                    if step > 1:
                        for column, seconds in times.items():
                            found[kind][column].append(seconds)
    finally:
        shutil.rmtree(directory)
    return found


def _checkpointer(directory: Path, key: Path | None) -> deeppart.Checkpointer:
    return deeppart.Checkpointer(
        deeppart.Config(
            persistent_dir=str(directory),
            compression="none",
            sign_key_file=None if key is None else str(key),
            timeout=_TIMEOUT_S,
        )
    )


def _measure(checkpointer: deeppart.Checkpointer, live: list[torch.Tensor], step: int) -> dict[str, float]:
    for tensor in live:
        tensor.add_(1.0)
    saved = [tensor.clone() for tensor in live]
    times = {}
    began, cpu_began = time.perf_counter(), time.process_time()
    pending = checkpointer.checkpoint({"live": live}, step)
    times[BLOCKED] = time.perf_counter() - began
    pending.wait("persistent", _TIMEOUT_S)
    times[SAFE] = time.perf_counter() - began
    times[SAVE_CPU] = time.process_time() - cpu_began
    for tensor in live:
        tensor.zero_()
    began, cpu_began = time.perf_counter(), time.process_time()
    restored = checkpointer.restore({"live": live})
    times[RESTORE] = time.perf_counter() - began
    times[RESTORE_CPU] = time.process_time() - cpu_began
    assert restored == step, f"restored step {restored} instead of {step}"
    for one, other in zip(live, saved, strict=True):
        assert torch.equal(one, other), "what came back differs from what was saved"
    return times


def show(found: dict[str, dict[str, list[float]]], console: Console) -> None:
    """Medians, with the fastest and the slowest round."""
    table = Table(title="signing, seconds", title_justify="left")
    for column in ("", *COLUMNS):
        table.add_column(column, justify="right" if column else "left")
    for kind, times in found.items():
        cells = (f"{median(each):.3f} ({min(each):.3f}-{max(each):.3f})" for each in times.values())
        table.add_row(kind, *cells)
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="bytes of the state, in 10^9 (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="where files go (default: here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    found = study(int(options.gigabytes * 1e9), options.rounds, options.disk)
    show(found, Console(width=None if sys.stdout.isatty() else 140))
    if options.json is not None:
        document = {"machine": describe_machine({"disk": str(options.disk)}), "signing": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
