"""Ranks of which one is told to end, by a signal: all end after the same step, with a checkpoint.

python -m tests.elastic.stop_job DIRECTORY
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import deeppart
from deeppart.elastic import leave, should_stop
from deeppart.stopping import Agreement, agreement_of_job
from tests.mpi.torchrun_job import tell

#: The rank that is told, and the step in which it is.
WHO, WHEN = 2, 5


def answers(agreement: Agreement, rank: int) -> list[bool]:
    """Rank 1 says yes at the fourth call; ranks come at different times."""
    found = []
    for call in range(8):
        time.sleep(0.002 * ((rank + call) % 3))
        found.append(agreement.ask(rank == 1 and call == 3))
    agreement.finish()
    return found


def at_once(agreement: Agreement, rank: int) -> list[bool]:
    """The same, where each call waits for all."""
    found = []
    for call in range(6):
        time.sleep(0.002 * ((rank + call) % 3))
        found.append(agreement.agree(rank == 1 and call == 3))
    return found


def main(directory: Path) -> None:
    rank = int(os.environ["RANK"])
    agreement = agreement_of_job()
    agreed = answers(agreement, rank) + at_once(agreement, rank)
    dist.init_process_group("gloo")
    draw = random.Random(rank)
    settings: dict[str, Any] = {
        "persistent_dir": str(directory / "ckpt"),
        "node_size": 1,
        "timeout": 60.0,
        "every": {"persistent": 1000},
    }
    state = {"weights": torch.zeros(3)}
    with deeppart.Checkpointer(**settings) as checkpointer:
        for step in range(1, 50):
            state["weights"] += 1
            if step == WHEN and rank == WHO:
                os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(draw.uniform(0, 0.02))
            if should_stop():
                tell(directory, last=step, agreed=agreed)
                leave(state, step, checkpointer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
