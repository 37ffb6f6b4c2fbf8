"""Made tests/golden/older-layout.tar.xz: a job of two nodes of an earlier version, all its levels.

    mpirun -n 2 python -m mpi4py make_older_layout.py DIRECTORY        # with the library of commit 3b3fded

That version named the directory of a step by its number alone. This one reads and removes such directories and makes
none, so the archive cannot be made again with it: it stays as it is. DIRECTORY's ``ckpt`` and ``nodes`` were packed
without the lock file, which names the machine.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import deeppart

STEPS = (1, 2, 3)
KEEP = 2


def make_state(rank: int, step: int) -> dict[str, Any]:
    """What is the same at all steps, what is of the step, and what is of the rank."""
    generator = torch.Generator().manual_seed(7)
    return {
        "frozen": torch.randn(300, 16, generator=generator),
        "weights": torch.full((10, 16), float(step)),
        "position": torch.arange(8) + 100 * rank + step,
        "config": {"lr": 0.1, "betas": (0.9, 0.999), "names": ["a", "b"]},
        "step": step,
    }


def make_config(directory: str, **settings: Any) -> deeppart.Config:
    """All levels at each checkpoint; ``settings`` instead of these."""
    levels = ("local", "partner", "parity", "persistent")
    defaults: dict[str, Any] = {
        "persistent_dir": f"{directory}/ckpt",
        "local_dir": f"{directory}/nodes/{{node}}",
        "node_size": 1,
        "keep": dict.fromkeys(levels, KEEP),
        "every": dict.fromkeys(levels, 1),
        "parity_group": 2,
        "parity_tolerate": 1,
        "compression": "zstd",
        "timeout": 60.0,
    }
    return deeppart.Config(**(defaults | settings))


def main(directory: str) -> None:
    """Save the steps."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with deeppart.Checkpointer(make_config(directory), comm) as checkpointer:
        for step in STEPS:
            checkpointer.checkpoint(make_state(comm.rank, step), step=step).wait()


if __name__ == "__main__":
    main(sys.argv[1])
