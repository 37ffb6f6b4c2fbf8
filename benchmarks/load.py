"""How long one process takes to read a checkpoint into new tensors, and into live ones, beside safetensors and torch.

    python benchmarks/load.py [--megabytes 512] [--repeat 7] [--directory DIR] [--json FILE]

A state of tensors of 4 MB, stored raw, with its files in the page cache. `copied`: safetensors maps its file, and each
tensor is copied out, as training needs it; it checks nothing. Medians (fastest, slowest). Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import deeppart


def seconds(read: Callable[[], Any], repeat: int) -> list[float]:
    """How long each of so many calls takes; what is returned is freed in between."""
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        state = read()
        found.append(time.perf_counter() - began)
        del state
    return found


def measure(directory: Path, megabytes: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each way to read."""
    state = {f"w{number}": torch.randn(1024, 1024) for number in range(max(1, megabytes // 4))}
    steps, tensors, pickled = directory / "steps", directory / "tensors", directory / "pickled"
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    save_file(state, tensors)
    torch.save(state, pickled)

    def into_live() -> None:
        with safe_open(tensors, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # no dict
                live[name].copy_(file.get_tensor(name))

    with deeppart.Checkpointer(persistent_dir=steps) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait()
        return {
            "deeppart.load": seconds(lambda: deeppart.load(steps), repeat),
            "deeppart.load, mmap": seconds(lambda: deeppart.load(steps, mmap=True), repeat),
            "safetensors, mapped, unchecked": seconds(lambda: load_file(tensors), repeat),
            "safetensors, copied": seconds(lambda: {k: v.clone() for k, v in load_file(tensors).items()}, repeat),
            "torch.load": seconds(lambda: torch.load(pickled), repeat),
            "deeppart.restore": seconds(lambda: checkpointer.restore(live), repeat),
            "safetensors, copied into live tensors": seconds(into_live, repeat),
        }


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="(default 512)")
    parser.add_argument("--repeat", type=int, default=7, help="(default 7)")
    parser.add_argument("--directory", type=Path, help="where the files are written to (default: that of tempfile)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as text:
        found = measure(Path(text), options.megabytes, options.repeat)
    for name, times in found.items():
        print(f"{name}: {median(times):.3f} ({min(times):.3f}-{max(times):.3f})")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
