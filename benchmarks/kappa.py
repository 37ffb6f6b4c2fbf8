"""What one more tensor costs a checkpoint on this machine, in seconds and in bytes: what the partitioner calls kappa.

    python benchmarks/kappa.py [--tensors 20000] [--repeat 6] [--directory /dev/shm]

One process, checkpoints to a directory in memory: of one tensor of 160 MB, and of that beside many small ones. What
the small ones add to the copy of the share, beyond their bytes, is their cost. Medians. Exit code: 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import deeppart
from benchmarks.ours import Sweep

_LARGE_ELEMENTS = 40_000_000
_TIMEOUT_S = 120.0
#: From the fourth on, staging memory and files to write over are there.
_WARM_UPS = 3


def capture_s(state: dict[str, torch.Tensor], directory: str, repeat: int) -> tuple[float, float]:
    """Seconds that the copy of the share takes, and that `checkpoint()` takes in all."""
    optimizer = Sweep(list(state.values()))
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="deeppart-kappa-", dir=directory) as root:
        config = deeppart.Config(
            persistent_dir=f"{root}/persistent",
            local_dir=f"{root}/local",
            every={"local": 1, "persistent": 0},
            compression="none",
            timeout=_TIMEOUT_S,
        )
        with deeppart.Checkpointer(config) as checkpointer, optimizer:
            for step in range(_WARM_UPS + repeat):
                optimizer.step()
                pending = checkpointer.checkpoint(state, step)
                pending.wait("local", _TIMEOUT_S)
                times.append((pending.report.stages_s["capture"], pending.report.blocked_s))
    copying, blocked = zip(*times[_WARM_UPS:], strict=True)
    return median(copying), median(blocked)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=20_000, help="small tensors (default 20,000)")
    parser.add_argument("--repeat", type=int, default=6, help="checkpoints that count (default 6)")
    parser.add_argument("--directory", default="/dev/shm", help="where files go (default /dev/shm)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    large = {"large": torch.randn(_LARGE_ELEMENTS)}
    alone, alone_in_all = capture_s(large, options.directory, options.repeat)
    rate = 4 * _LARGE_ELEMENTS / alone
    print(f"one tensor of {4 * _LARGE_ELEMENTS / 1e6:.0f} MB: copied at {rate / 1e9:.1f} GB/s")
    for elements in (4, 256, 1024):
        small = {f"small{number}": torch.randn(elements) for number in range(options.tensors)}
        beside, in_all = capture_s(large | small, options.directory, options.repeat)
        bytes_s = 4 * elements * options.tensors / rate
        each_s = (beside - alone - bytes_s) / options.tensors
        in_all_s = (in_all - alone_in_all - bytes_s) / options.tensors
        print(
            f"{options.tensors} tensors of {4 * elements} bytes: {1e6 * each_s:.2f} us each, kappa "
            f"{each_s * rate:.0f} bytes; with planning, which every rank does for all of them, {1e6 * in_all_s:.2f} us"
        )


if __name__ == "__main__":
    main()
