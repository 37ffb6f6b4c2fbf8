"""What a busy processor next to it costs a training step: the floor under all that works in the background.

    python benchmarks/neighbour.py [--rounds N]

The training of benchmarks/interference.py, on one thread, alone and beside one other process of niceness 10 that
computes in its first-level cache, hashes memory, or copies memory, over and over. Two steps each, in turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.interference import Training
from deeppart.save import NICENESS

_STEPS = 2
_START_S = 3.0
ALONE = "alone"
LOADS = {
    ALONE: "",
    "computes in its cache": "import hashlib\nb = b'x' * 4096\nwhile True: hashlib.sha256(b).digest()",
    "hashes 1 GiB": (
        "import numpy, xxhash\na = numpy.ones(1 << 30, dtype=numpy.uint8)\nwhile True: xxhash.xxh3_128_digest(a)"
    ),
    "copies 1 GiB": (
        "import numpy\na, b = (numpy.ones(1 << 30, dtype=numpy.uint8) for _ in range(2))\n"
        "while True: numpy.copyto(b, a)"
    ),
}


def step_s(training: Training, load: str) -> float:
    """Seconds of a step beside a program that never ends by itself; "" for none."""
    command = ["nice", "-n", str(NICENESS), sys.executable, "-c", load]
    neighbour = subprocess.Popen(command) if load else None
    try:
        if neighbour is not None:
            time.sleep(_START_S)
        began = time.perf_counter()
        for _ in range(_STEPS):
            training.step()
        return (time.perf_counter() - began) / _STEPS
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    training = Training(24, 1024, 30522, tokens=256)
    for _ in range(2):
        training.step()
    seconds: dict[str, list[float]] = {name: [] for name in LOADS}
    for _ in range(rounds):
        for name, load in LOADS.items():
            seconds[name].append(step_s(training, load))
    for name, found in seconds.items():
        beside = median(found) / median(seconds[ALONE]) - 1
        print(f"{name:<22} {median(found):.3f} s ({min(found):.3f}-{max(found):.3f})  {beside:+.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
