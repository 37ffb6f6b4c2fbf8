"""What every rank of demo_fsdp.py runs: a language model that FSDP2 shards is trained, saved, and restored.

    torchrun --nproc-per-node 4 examples/demo_fsdp_rank.py --folder DIR --result FILE --losses FILE [--restore] ...

Model and optimizer come from get_model_state_dict and get_optimizer_state_dict, as for torch.distributed.checkpoint
(DCP): their leaves are DTensors that share memory with the training. The text and the random numbers are each rank's
own. Every figure is of the slowest rank, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from demo_fsdp_states import Costs, differences, spoil, whole, write_whole
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from train_lm import LanguageModel, Reader, own_rng, remap

import deeppart

#: Seconds that ranks wait for each other.
PATIENCE = 60.0
#: What DCP saves: it has no values that are each rank's own.
SHARED = ("model", "optimizer", "step")


class Training:
    """The model, sharded by block and as a whole; its optimizer; and this rank's way through the text.

    Attributes:
        state: all that is saved. Tensors share memory with the training; `collect` brings the rest up to date.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)  # the same model on every rank, before it is sharded
        self.model = LanguageModel(args.layers, args.width, heads=4, context=64, dropout=0.1)
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = Reader(64, args.seed, self.rank, self.ranks)
        self._batch = args.batch
        self.state: dict[str, Any] = {"data": self.data, "step": 0, "rng": own_rng(args.seed, self.rank)}
        self._take_from_torch()
        torch.set_rng_state(self.state["rng"])

    def step(self) -> float:
        """One step; returns the mean loss of all ranks."""
        text, following = self.data.batch(self._batch)
        loss = nn.functional.cross_entropy(self.model(text).flatten(0, 1), following.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean / self.ranks)

    def collect(self, step: int) -> None:
        """Before a save."""
        self._take_from_torch()
        self.state |= {"step": step, "rng": torch.get_rng_state()}

    def take(self) -> None:
        """After a restore: the tensors are there already, torch takes the rest."""
        set_model_state_dict(self.model, self.state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, self.state["optimizer"])
        torch.set_rng_state(self.state["rng"])

    def _take_from_torch(self) -> None:
        optimizer = get_optimizer_state_dict(self.model, self.optimizer)  # makes the moments, if there are none yet
        self.state |= {"model": get_model_state_dict(self.model), "optimizer": optimizer}

    @property
    def shared(self) -> dict[str, Any]:
        """The part of the state that is not each rank's own."""
        return {name: self.state[name] for name in SHARED}


def slowest(seconds: float) -> float:
    """The largest value on any rank."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def timed(work: Callable[[], object]) -> float:
    """Seconds of work that all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    work()
    return slowest(time.perf_counter() - began)


def open_checkpointer(args: argparse.Namespace) -> deeppart.Checkpointer:
    """deeppart's side: straight to the persistent directory; the same bytes as DCP writes."""
    config = deeppart.Config(
        persistent_dir=str(args.folder / "deeppart"),
        flush_bandwidth=args.flush_bandwidth,
        compression="none",
        timeout=PATIENCE,
    )
    return deeppart.Checkpointer(config)


def save_with_deeppart(checkpointer: deeppart.Checkpointer, training: Training, step: int) -> deeppart.Pending:
    """deeppart's side: begin a checkpoint."""
    return checkpointer.checkpoint(training.state, step=step)


def restore_with_deeppart(checkpointer: deeppart.Checkpointer, training: Training) -> int | None:
    """deeppart's side: the newest checkpoint, in place, on however many ranks there are."""
    return checkpointer.restore(training.state, per_rank=remap)


def measure_saves(
    training: Training, checkpointer: deeppart.Checkpointer, stager: DefaultStager, folder: Path, step: int
) -> Costs:
    """The same state by each way, in drawn order: seconds until training may go on, and until it is safe on disk."""

    def by_deeppart() -> tuple[float, float]:
        began = time.perf_counter()
        pending = save_with_deeppart(checkpointer, training, step)
        blocked = time.perf_counter() - began
        pending.wait("persistent", timeout=PATIENCE)
        return blocked, time.perf_counter() - began

    def by_dcp() -> tuple[float, float]:
        began = time.perf_counter()
        dcp.save(training.shared, checkpoint_id=folder / "dcp" / str(step))
        return (time.perf_counter() - began,) * 2

    def by_dcp_async() -> tuple[float, float]:
        began = time.perf_counter()
        saving: Any = dcp.async_save(
            training.shared, checkpoint_id=folder / "dcp-async" / str(step), async_stager=stager
        )
        blocked = time.perf_counter() - began
        saving.result(PATIENCE)
        return blocked, time.perf_counter() - began

    ways = {"deeppart": by_deeppart, "dcp.save": by_dcp, "dcp.async_save": by_dcp_async}
    found: Costs = {}
    for name in random.Random(step).sample(sorted(ways), len(ways)):
        dist.barrier()
        blocked, safe = ways[name]()
        found[name] = {"blocked": slowest(blocked), "safe": slowest(safe)}
    return found


def restore(training: Training, checkpointer: deeppart.Checkpointer, args: argparse.Namespace) -> dict[str, Any]:
    """By DCP, then by deeppart, each into a state of which nothing was left, and every byte compared."""
    found: dict[str, Any] = {"step": None}

    def by_deeppart() -> None:
        found["step"] = restore_with_deeppart(checkpointer, training)

    def by_dcp() -> None:
        shared = training.shared
        dcp.load(shared, checkpoint_id=args.folder / "dcp" / str(args.dcp_step))
        training.state |= shared

    for name, step, load in (("dcp.load", args.dcp_step, by_dcp), ("deeppart", None, by_deeppart)):
        spoil(training.shared)
        seconds = timed(load)
        step = found["step"] if step is None else step
        wrong, nbytes = differences(whole(training.shared), args.folder / "whole" / f"{step}.pt")
        everywhere: list[Any] = [None] * training.ranks
        dist.all_gather_object(everywhere, [f"rank {training.rank}: {name}" for name in wrong])
        found[name] = {"seconds": seconds, "wrong": list(chain(*everywhere)), "bytes": nbytes}
    training.take()
    return found


def train(args: argparse.Namespace) -> dict[str, Any]:
    """The whole job, on every rank; returns what was found out."""
    training = Training(args)
    result: dict[str, Any] = {"saves": []}
    stager = DefaultStager(StagingOptions(False, False, False, False))
    log = args.losses.open("a", buffering=1) if training.rank == 0 else None
    with open_checkpointer(args) as checkpointer:
        if args.restore:
            result["restore"] = restore(training, checkpointer, args)
        training.model.train()
        for step in range(training.state["step"] + 1, args.steps + 1):
            loss = training.step()
            if log:
                log.write(json.dumps({"step": step, "loss": loss, "hex": loss.hex()}) + "\n")
            if args.save == "none" or step % args.every:
                continue
            training.collect(step)
            if args.save == "measured":
                result["saves"].append(measure_saves(training, checkpointer, stager, args.folder, step))
                continue
            write_whole(training.shared, args.folder / "whole" / f"{step}.pt")
            dcp.save(training.shared, checkpoint_id=args.folder / "dcp" / str(step))
            save_with_deeppart(checkpointer, training, step)
    stager.close()
    training.collect(args.steps)
    write_whole(training.shared, args.folder / "end.pt")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of this run: checkpoints, and full tensors")
    parser.add_argument("--result", type=Path, required=True, help="what was found out, as JSON")
    parser.add_argument("--losses", type=Path, required=True, help="append a line of JSON per step to this file")
    parser.add_argument("--restore", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--dcp-step", type=int, help="the step that dcp.load restores")
    parser.add_argument("--save", choices=["none", "plain", "measured"], default="none")
    parser.add_argument("--flush-bandwidth", type=float, help="deeppart's, bytes/s")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in (("steps", 40), ("every", 8), ("layers", 4), ("width", 192), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    result = train(args)
    if dist.get_rank() == 0:
        args.result.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    # Threads of gloo end some processes by SIGABRT while the interpreter ends (torch 2.13, with or without deeppart).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
