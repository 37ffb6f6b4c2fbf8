"""What every rank of benchmarks/shapes.py measures, by way of benchmarks/checkout.py."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI

import deeppart
from benchmarks.bare import copy_each, copy_each_with_torch, cut, fresh_memory
from benchmarks.ours import Sweep
from benchmarks.workload import change_everywhere, halves, make_workload

if TYPE_CHECKING:
    from benchmarks.checkout import Times

_TIMEOUT_S = 300.0
_POLL_S = 0.0002


@dataclass(frozen=True)
class Shape:
    """A state.

    Attributes:
        tree: what is handed to ``checkpoint()``.
        shared: its tensors that are the same on every rank.
        own: those that are not.
    """

    tree: dict[str, Any]
    shared: list[torch.Tensor]
    own: list[torch.Tensor]


def _filled(count: int, *shape: int, seed: int = 1) -> list[torch.Tensor]:
    """So many tensors of a shape, random, every one another."""
    drawn = torch.randn(1 << 20, generator=torch.Generator().manual_seed(seed))
    tensors = []
    for number in range(count):
        flat = torch.empty(shape).reshape(-1)
        for at in range(0, flat.numel(), len(drawn)):
            flat[at : at + len(drawn)] = drawn[: flat.numel() - at]
        flat[0] = number
        tensors.append(flat.view(shape))
    return tensors


def _named(shared: list[torch.Tensor], own: list[torch.Tensor]) -> Shape:
    tree = {f"part{number:06d}.weight": tensor for number, tensor in enumerate(shared)}
    mine = {f"moment{number:06d}": tensor for number, tensor in enumerate(own)}
    return Shape({"model": tree, "mine": mine}, shared, own)


def bert(scale: float, rank: int) -> Shape:
    """BERT-large by shapes with its Adam state."""
    workload = make_workload("bert-large+adam", scale, 24, 1)
    return Shape(workload.tree, workload.leaves, [])


def embedding(scale: float, rank: int) -> Shape:
    """One table of 3 GB at scale 1, and 2,000 tensors of 80 KB."""
    return _named(_filled(1, round(scale * 750_000), 1000) + _filled(2000, 100, 200), [])


def experts(scale: float, rank: int) -> Shape:
    """500 experts at scale 1, of two matrices of 2 MiB each."""
    return _named(_filled(round(scale * 1000), 512, 1024), [])


def own(scale: float, rank: int) -> Shape:
    """500 matrices of 4 MiB at scale 1; every rank has 30 % of them for itself."""
    return _named(_filled(round(scale * 350), 1024, 1024), _filled(round(scale * 150), 1024, 1024, seed=2 + rank))


def small(scale: float, rank: int) -> Shape:
    """100,000 tensors of 4 KiB at scale 1."""
    return _named(_filled(round(scale * 100_000), 1024), [])


SHAPES: dict[str, Callable[[float, int], Shape]] = {
    each.__name__: each for each in (bert, embedding, experts, own, small)
}


class Patience:
    """Waiting for the other ranks without spinning: where these outnumber the processors, it would slow them down."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def _wait(self, request: MPI.Request) -> None:
        while not request.Test():
            time.sleep(_POLL_S)

    def together(self) -> None:
        """All are here."""
        self._wait(self._comm.Ibarrier())

    def slowest(self, value: float) -> float:
        """The largest value on any rank."""
        sent, received = torch.tensor([value], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        self._wait(self._comm.Iallreduce(sent.numpy(), received.numpy(), op=MPI.MAX))
        return float(received)

    def timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of the slowest rank, and what the work returns."""
        self.together()
        began = time.perf_counter()
        result = work()
        return self.slowest(time.perf_counter() - began), result


class Measurement:
    """One shape, one capture.

    Args:
        order: see :class:`benchmarks.shapes.Order`.
        comm: the ranks.
    """

    def __init__(self, order: dict[str, Any], comm: MPI.Comm) -> None:
        self._order, self._ranks = order, Patience(comm)
        self._shape = SHAPES[order["shape"]](order["scale"], comm.rank)
        self._share = halves(self._shape.shared, comm.size, comm.rank) + [leaf.reshape(-1) for leaf in self._shape.own]
        self._bytes = sum(view.nbytes for view in self._share)
        self._leaves = self._shape.shared + self._shape.own
        self._turn = 0
        self.found: Times = {name: [] for name in ("fresh", "memmove", "torch", "blocked", "planning", "local", "held")}

    def run(self) -> Times:
        """All checkpoints."""
        optimizer = Sweep(self._leaves)
        config = deeppart.Config(
            persistent_dir=f"{self._order['disk']}/persistent",
            local_dir=f"{self._order['tmpfs']}/local",
            every={"local": 1, "persistent": 0},
            keep={"local": 1, "persistent": 1},
            compression="none",
            capture=self._order["capture"],
            timeout=_TIMEOUT_S,
        )
        with deeppart.Checkpointer(config) as checkpointer, optimizer:
            self._train(optimizer)
            self._copy_into_fresh_memory()
            if self._order["prepares"]:
                self._prepare(checkpointer)
            self._train(optimizer)
            self._checkpoint(checkpointer, optimizer)
            self._train(optimizer)
            targets = self._copy_into_fresh_memory()
            for number in range(1 + self._order["repeat"]):
                contestants: list[Callable[[], object]] = [
                    lambda: self._checkpoint(checkpointer, optimizer),
                    lambda: self._copy("memmove", lambda: copy_each(targets, self._share)),
                    lambda: self._copy("torch", lambda: copy_each_with_torch(targets, self._share)),
                ]
                for contestant in random.Random(number).sample(contestants, len(contestants)):
                    self._train(optimizer)
                    contestant()
        return self.found

    def _prepare(self, checkpointer: deeppart.Checkpointer) -> None:
        self.found["prepare"] = [self._ranks.timed(lambda: checkpointer.prepare(self._shape.tree))[0]]
        self.found["ready"] = [self._ranks.timed(lambda: _wait_until_ready(checkpointer))[0]]

    def _copy_into_fresh_memory(self) -> list[torch.Tensor]:
        """Into memory that this process has not had; returns it, for each piece of the share."""
        memory = fresh_memory(self._bytes)
        targets = cut(torch.frombuffer(memory, dtype=torch.uint8), self._share)
        self.found["fresh"].append(self._ranks.timed(lambda: copy_each(targets, self._share))[0])
        return targets

    def _train(self, optimizer: torch.optim.Optimizer) -> None:
        """Change all chunks a little, and go through all elements."""
        self._turn += 1
        change_everywhere(self._leaves, self._turn)
        optimizer.step()
        self._ranks.together()

    def _copy(self, name: str, copy: Callable[[], object]) -> None:
        self.found[name].append(self._ranks.timed(copy)[0])

    def _checkpoint(self, checkpointer: deeppart.Checkpointer, optimizer: torch.optim.Optimizer) -> None:
        self._ranks.together()
        began = time.perf_counter()
        pending = checkpointer.checkpoint(self._shape.tree, self._turn)
        blocked_s = time.perf_counter() - began
        if self._order["capture"] == "lazy":
            optimizer.step()
        pending.wait("local", _TIMEOUT_S)
        report = pending.report
        local_s = report.levels["local"].seconds or 0.0
        planning_s = report.stages_s["flatten"] + report.stages_s["agree"]
        figures = {"blocked": blocked_s, "planning": planning_s, "local": local_s + blocked_s, "held": report.held_s}
        for name, value in figures.items():
            self.found[name].append(self._ranks.slowest(value))


def _wait_until_ready(checkpointer: deeppart.Checkpointer) -> None:
    while checkpointer.preparing:
        time.sleep(_POLL_S)


def measure(order_path: Path, comm: MPI.Comm) -> Times:
    """Seconds of the slowest rank, each time, by what was measured."""
    return Measurement(json.loads(order_path.read_text(encoding="utf-8")), comm).run()
