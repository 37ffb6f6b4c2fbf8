"""What measuring the noise of gradients costs a step: DistributedDataParallel and ElasticDataParallel, in turn.

    torchrun --nproc-per-node 4 -m benchmarks.elastic_noise [--turns 2] [--rounds 8] [--samples 4] [--length 128]
                                                            [--optimizer SGD|AdamW] [--paired]

A model of BERT-base's shapes (110 million parameters), random tokens, gloo. Each optimizer is tried in both, in turns,
so that what else the machine does falls on both; one model at a time, for memory. Medians, with the middle half: of
seconds by the clock, and of all ranks' seconds on processors, which vary less where ranks share them.

With --paired steps of one ElasticDataParallel that exchange gradients as DistributedDataParallel's own hook does, and
steps that measure their noise, too (otherwise one step in eight does), come one after the other: seconds apart, so that
a machine that gets slower within minutes says nothing of it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataLoader, ElasticDataParallel, Progress

LAYERS, WIDTH, HEADS, WORDS = 12, 768, 12, 30_522
#: Seconds of a step by the clock, and on processors.
Step = tuple[float, float]
Steps = list[Step]
IN_TURN = ("DistributedDataParallel", "ElasticDataParallel")
PAIRED = ("gradients exchanged", "and their noise measured")


class Bert(torch.nn.Module):
    """BERT-base's encoder over its vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.encoder(self.embedding(tokens))
        return found.square().mean()


def steps(kind: str, elastic: bool, samples: int, length: int) -> tuple[Any, Callable[[], Step]]:
    """A model, and what makes a step and gives its seconds: by the clock, and on processors, of all ranks together."""
    torch.manual_seed(0)
    model, ranks = Bert(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if kind == "SGD" else torch.optim.AdamW(model.parameters())
    progress = Progress()
    data = TensorDataset(torch.randint(WORDS, (4096, length)))
    loader = ElasticDataLoader(data, samples * ranks, progress=progress)
    parallel: Any = (
        ElasticDataParallel(model, optimizer, progress=progress) if elastic else DistributedDataParallel(model)
    )
    batches = iter(loader)

    def step() -> Step:
        (tokens,) = next(batches)
        dist.barrier()
        began, worked = time.perf_counter(), time.process_time()
        parallel(tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        dist.barrier()
        took_s = time.perf_counter() - began
        work_s = torch.tensor(time.process_time() - worked, dtype=torch.float64)
        dist.all_reduce(work_s)
        return took_s, float(work_s)

    return parallel, step


def in_turn(kind: str, options: argparse.Namespace) -> tuple[Steps, Steps]:
    """Steps of both, by models that are made in turn: plain, elastic, elastic, plain."""
    found: tuple[Steps, Steps] = ([], [])
    for turn in range(2 * options.turns):
        which = (turn + turn // 2) % 2
        parallel, step = steps(kind, bool(which), options.samples, options.length)
        for _ in range(before(kind)):
            step()
        found[which].extend(step() for _ in range(options.rounds))
        del parallel, step
        gc.collect()
    return found


def in_pairs(kind: str, options: argparse.Namespace) -> tuple[Steps, Steps]:
    """Steps of one model that measures the noise in every other step: without, with, with, without."""
    found: tuple[Steps, Steps] = ([], [])
    parallel, step = steps(kind, True, options.samples, options.length)
    norms = parallel._norms
    measuring, norms._every = norms.hook, 1

    def exchanging(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        norms.forget()
        return allreduce_hook(norms._group, bucket)

    for _ in range(before(kind)):
        step()
    for turn in range(2 * options.turns * options.rounds):
        which = (turn + turn // 2) % 2
        norms.hook = measuring if which else exchanging
        found[which].append(step())
    return found


def before(kind: str) -> int:
    """Steps that do not count: AdamW's second moments precondition gradients from the fifth one on."""
    return 7 if kind == "AdamW" else 2


def report(kind: str, plain: Steps, elastic: Steps, names: tuple[str, str]) -> None:
    """Medians, their middle halves, and what is added."""
    for number, what in enumerate(("by the clock", "on processors")):
        medians = []
        for name, times in zip(names, (plain, elastic), strict=True):
            seconds = [each[number] for each in times]
            medians.append(statistics.median(seconds))
            low, _, high = statistics.quantiles(seconds, n=4)
            print(f"{kind}, {what}, {name}: {medians[-1]:.3f} s ({low:.3f}-{high:.3f})")
        print(f"{kind}, {what}: {medians[1] / medians[0] - 1:+.1%}", flush=True)


def main() -> None:
    """Both optimizers, in both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2, help="of each, with a model of its own")
    parser.add_argument("--rounds", type=int, default=8, help="steps of a turn that count")
    parser.add_argument("--samples", type=int, default=4, help="of each rank")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--optimizer", action="append", choices=["SGD", "AdamW"], help="by default both")
    parser.add_argument("--paired", action="store_true", help="one model, which measures the noise in every other step")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    for kind in options.optimizer or ("SGD", "AdamW"):
        found = in_pairs(kind, options) if options.paired else in_turn(kind, options)
        if dist.get_rank() == 0:
            report(kind, *found, PAIRED if options.paired else IN_TURN)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
