"""Train a small language model, data parallel, with checkpoints: a script to start yours from.

    python examples/train_lm.py --checkpoint-dir checkpoints                                       # one process
    torchrun --nproc-per-node 4 examples/train_lm.py --checkpoint-dir checkpoints --local-dir /local/scratch
    mpirun -n 4 python -m mpi4py examples/train_lm.py --checkpoint-dir checkpoints --local-dir /local/scratch

Start it again after it has ended, for whatever reason and on as many ranks as you like: it goes on from its newest
checkpoint. Lines that are there for checkpoints are marked with `# <-`. The text is Python's own standard library.
(`python -m mpi4py`: an exception on one rank ends all of them; otherwise the others would wait for it.)
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import deeppart  # <-


class LanguageModel(nn.Module):
    """A transformer that predicts the next byte."""

    def __init__(self, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embedding.weight  # tied: a checkpoint holds it once
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embedding(text) + self.place
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Reader:
    """One rank's way through the text: of all windows, in shuffled order, rank r of n reads r, r + n, r + 2 n ...

    It has ``state_dict`` and ``load_state_dict``, so it can stand in the state just as a model does.
    """

    def __init__(self, context: int, seed: int, rank: int, ranks: int) -> None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)[:4_000_000]
        self.windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, context + 1, context)
        self.order = torch.randperm(len(self.windows), generator=torch.Generator().manual_seed(seed))
        self.ranks = ranks
        self.position = rank  # of the next window: another one on every rank

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next ``size`` windows, and the same moved on by one byte."""
        places = torch.arange(self.position, self.position + size * self.ranks, self.ranks) % len(self.order)
        self.position += size * self.ranks
        windows = self.windows[self.order[places]].long()
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def own_rng(seed: int, rank: int) -> Tensor:
    """State of a random number generator of this rank's own, for dropout: ranks must not drop the same units."""
    return torch.Generator().manual_seed(1_000_003 * (seed + 1) + rank).get_state()


def remap(path: str, old: Sequence[Any], rank: int, ranks: int) -> Any:
    """What a new rank gets where the old ranks had values of their own; asked when their number has changed.

    Args:
        path: where in the state, as in ``data/position``.
        old: the old ranks' values, in the order of their ranks.
        rank, ranks: the new rank, and how many there are now.
    """
    if path == "data/position":
        return min(old) + rank  # all windows before min(old) have been read, so none is left out or read twice
    if path == "rng":  # old ranks go on with their numbers, new ones with those they have been given at the start
        return old[rank] if rank < len(old) else torch.get_rng_state()
    raise ValueError(f"nobody has said what {path} is to be on another number of ranks")


def average(gradients: Sequence[Tensor], loss: Tensor, ranks: int) -> float:
    """Replace the gradients by their mean over all ranks, in one message; returns the mean loss."""
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().view(1)])
    if ranks > 1:
        if dist.is_initialized():
            dist.all_reduce(flat)
        else:
            from mpi4py import MPI

            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat.numpy())
        flat /= ranks
    means = flat[:-1].split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
    return float(flat[-1])


def warm_up_and_decay(done: int) -> float:
    """What the learning rate is multiplied with after so many steps; does not depend on how many there will be."""
    factor: float = min((done + 1) / 20, (20 / (done + 1)) ** 0.5)
    return factor


def cost(report: deeppart.Report) -> str:
    """What a checkpoint has cost this rank so far."""
    levels = [f"{name} after {level.seconds:.2f} s" for name, level in report.levels.items() if level.state == "done"]
    return f"checkpoint {report.step}: blocked {1e3 * report.blocked_s:.1f} ms, {', '.join(levels) or 'under way'}"


def train(args: argparse.Namespace, checkpointer: deeppart.Checkpointer) -> None:
    """The whole training, on every rank."""
    rank, ranks = checkpointer.rank, checkpointer.world_size
    torch.manual_seed(args.seed)  # the same model on every rank
    model = LanguageModel(args.layers, args.width, args.heads, args.context, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_and_decay)
    data = Reader(args.context, args.seed, rank, ranks)
    torch.set_rng_state(own_rng(args.seed, rank))

    # All that the training needs to go on. What is equal on all ranks is saved once, each rank writing a share of
    # it; "rng" and the position in "data" differ, so every rank's own is saved. deeppart finds out which is which.
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data}  # <-
    state |= {"step": 0, "ranks": ranks, "rng": torch.get_rng_state()}  # <-
    found = checkpointer.restore(state, per_rank=remap if args.per_rank == "remap" else args.per_rank)  # <-
    if found is not None and state["ranks"] == 1 < ranks:
        # Saved by one rank, nothing differed between ranks: all of them have now got that rank's values.
        data.position = remap("data/position", [data.position], rank, ranks)
        state["rng"] = remap("rng", [state["rng"]], rank, ranks)
    torch.set_rng_state(state["rng"])  # <-
    say = print if rank == 0 else lambda *_, **__: None
    say("starting from scratch" if found is None else f"resumed from step {found}", flush=True)
    for line in checkpointer.explanation:
        say(f"  {line}", flush=True)

    log = open(args.loss_log, "a", buffering=1) if args.loss_log and rank == 0 else None  # noqa: SIM115
    pending: deeppart.Pending | None = None
    model.train()
    for step in range(state["step"] + 1, args.steps + 1):
        text, following = data.batch(args.batch)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        mean = average([p.grad for p in model.parameters() if p.grad is not None], loss, ranks)
        optimizer.step()
        scheduler.step()
        if log:
            log.write(json.dumps({"step": step, "loss": mean, "hex": mean.hex()}) + "\n")
        if step % args.every == 0 or step == args.steps:
            state |= {"step": step, "ranks": ranks, "rng": torch.get_rng_state()}  # <-
            say(f"step {step}: loss {mean:.4f}{', ' + cost(pending.report) if pending else ''}", flush=True)
            pending = checkpointer.checkpoint(state, step=step)  # <- returns as soon as training may go on
    if pending is not None:
        pending.wait("persistent", timeout=args.timeout)  # <- raises if the last checkpoint cannot be completed
        say(cost(pending.report), flush=True)
    say(f"finished at step {state['step']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", default="checkpoints", help="on a file system that all nodes see")
    parser.add_argument("--local-dir", help="on each node's own storage; without it, straight to --checkpoint-dir")
    parser.add_argument("--steps", type=int, default=1000, help="train until this step, counted from the very first")
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--per-rank", choices=["remap", "strict", "drop"], default="remap", help="see deeppart.restore")
    parser.add_argument("--flush-bandwidth", type=float, help="most bytes/s from a node to --checkpoint-dir")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that ranks wait for each other")
    parser.add_argument("--loss-log", help="append a line of JSON per step to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    for name, value in (("layers", 4), ("width", 160), ("heads", 4), ("context", 64), ("batch", 4), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    folders = {"persistent_dir": args.checkpoint_dir, "local_dir": args.local_dir}
    config = deeppart.Config(**folders, flush_bandwidth=args.flush_bandwidth, timeout=args.timeout)  # <-
    with deeppart.Checkpointer(config) as checkpointer:  # <-
        train(args, checkpointer)


if __name__ == "__main__":
    main()
