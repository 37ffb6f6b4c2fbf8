"""Train a small language model that FSDP2 shards, with checkpoints: a script to start yours from.

    torchrun --nproc-per-node 4 examples/train_fsdp.py --checkpoint-dir checkpoints

Start it again after it has ended, for whatever reason and on as many ranks as you like: it goes on from its newest
checkpoint. Model and optimizer go into the state as they are, sharded. Lines that are there for checkpoints are marked
with `# <-`. The model, the text and what is each rank's own are those of train_lm.py. torch 2.6 or later.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from train_lm import LanguageModel, Reader, own_rng, remap, warm_up_and_decay

import deeppart  # <-


def train(args: argparse.Namespace, checkpointer: deeppart.Checkpointer) -> None:
    """The whole training, on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)  # the same model on every rank, before it is sharded
    model = LanguageModel(args.layers, args.width, heads=4, context=64, dropout=0.1)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_and_decay)
    data = Reader(64, args.seed, rank, ranks)
    torch.set_rng_state(own_rng(args.seed, rank))

    # Each rank saves its shards, and its own random numbers and place in the text.
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data}  # <-
    state |= {"step": 0, "rng": torch.get_rng_state()}  # <-
    found = checkpointer.restore(state, per_rank=remap)  # <- remap: what a rank of another number of ranks gets
    torch.set_rng_state(state["rng"])  # <-
    say = print if rank == 0 else lambda *_, **__: None
    say("starting from scratch" if found is None else f"resumed from step {found}", flush=True)

    log = open(args.loss_log, "a", buffering=1) if args.loss_log and rank == 0 else None  # noqa: SIM115
    pending: deeppart.Pending | None = None
    for step in range(state["step"] + 1, args.steps + 1):
        text, following = data.batch(4)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if log:
            log.write(json.dumps({"step": step, "hex": (float(mean) / ranks).hex()}) + "\n")
        if step % args.every == 0 or step == args.steps:
            state |= {"step": step, "rng": torch.get_rng_state()}  # <-
            pending = checkpointer.checkpoint(state, step=step)  # <- returns as soon as training may go on
            say(f"step {step}: loss {float(mean) / ranks:.4f}", flush=True)
    if pending is not None:
        pending.wait("persistent")  # <- raises if the last checkpoint cannot be completed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="on a file system that all nodes see")
    parser.add_argument("--steps", type=int, default=200, help="train until this step, counted from the very first")
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--loss-log", help="append a line of JSON per step to this file")
    for name, value in (("layers", 4), ("width", 160), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with deeppart.Checkpointer(persistent_dir=args.checkpoint_dir) as checkpointer:  # <-
        train(args, checkpointer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
