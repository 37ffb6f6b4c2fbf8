"""A training under ``deeppart run``: a replicated model, a checkpoint each third step, and ways to end it midway."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deeppart
from deeppart.elastic import leave, should_stop

#: Samples of a step, of all ranks together: in double precision its gradient is nearly the same on any number of them.
BATCH = 12


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model before the first step, and its optimizer."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).double()
    return model, torch.optim.AdamW(model.parameters())


def backward(model: torch.nn.Module, step: int, rank: int, ranks: int) -> None:
    """A rank's part of the gradient of a step."""
    x = torch.randn(BATCH, 20, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    model.zero_grad()
    (model(x[rank::ranks]).square().sum() / BATCH).backward()


def main(steps: int, result: str, way: str) -> None:
    """Train, unless ``way`` says otherwise: kill rank 1 in the first epoch, once step 6 is in memory; slow: for
    signals; plain: for signals that the script does not handle.

    "until enough": to the next multiple of ten once there is a file named "enough"; rank 0 notes its steps.
    """
    dist.init_process_group("gloo")
    rank, epoch = dist.get_rank(), int(os.environ.get("DEEPPART_EPOCH", "1"))
    model, optimizer = make()
    state = {"model": model, "optimizer": optimizer}
    with deeppart.Checkpointer() as checkpointer:
        first = step = checkpointer.restore(state) or 0
        while step < steps:
            step += 1
            backward(model, step, rank, dist.get_world_size())
            # Not by DDP, which orders its buckets anew after its first step: sums of three are rounded otherwise then.
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            if step % 3 == 0:
                checkpointer.checkpoint(state, step)
            if way == "until enough":
                time.sleep(0.02)
                if rank == 0:
                    with open("step", "w") as file:
                        file.write(str(step))
                is_enough = torch.tensor(float(os.path.exists("enough")))
                dist.all_reduce(is_enough)
                if is_enough > 0 and step % 10 == 0:
                    break
            if way in ("slow", "plain"):
                time.sleep(0.05)
                if rank == 0 and step == first + 5:
                    print("begun", flush=True)
                if way == "slow" and should_stop():
                    leave(state, step, checkpointer)
            elif way == "kill" and epoch == 1 and rank == 1 and step == 8:
                parts = f"memory/*/*/step-{6:012}-*/part-*"
                while len(list(Path(os.environ["DEEPPART_AGENT"]).glob(parts))) < 2:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
