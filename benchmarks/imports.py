"""How long Python takes to import what training scripts import: a piece of every restart.

    python benchmarks/imports.py [--repeat 5]

Each import runs in a new interpreter, from its start to its exit, with the files in the page cache. Processor seconds,
user and system, are what it takes where nothing else runs; elapsed ones are those of this machine now. On many nodes
that read from one file system it takes longer (docs/simulator.md, "restart"). Exit code: 0.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

#: What a script imports; an empty line is the interpreter alone.
CASES = (
    "",
    "import torch",
    "import torch, deeppart",
    "import torch, torch.distributed.fsdp",
    "import torch, transformers",
    "import torch, lightning",
)
LIMIT_S = 300.0


def known(statement: str) -> bool:
    """True if all packages of an import are installed here."""
    names = [name.strip().split(".")[0] for name in statement.removeprefix("import ").split(",") if name.strip()]
    return all(importlib.util.find_spec(name) for name in names)


def import_s(statement: str) -> tuple[float, float]:
    """Processor seconds and elapsed ones of an interpreter that imports and ends."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, timeout=LIMIT_S)
    elapsed, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, elapsed


def measure(repeat: int) -> None:
    """Print the medians of each import."""
    about = describe_machine({})
    print(f"{about['cpu']}, Python {sys.version.split()[0]}")
    for statement in filter(known, CASES):
        import_s(statement)  # the page cache
        spent, elapsed = zip(*(import_s(statement) for _ in range(repeat)), strict=True)
        numbers = (
            f"processor {median(spent):.2f} s ({min(spent):.2f}-{max(spent):.2f}), elapsed {median(elapsed):.2f} s"
        )
        print(f"{statement or 'python alone':40} {numbers}", flush=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    measure(parser.parse_args().repeat)


if __name__ == "__main__":
    main()
