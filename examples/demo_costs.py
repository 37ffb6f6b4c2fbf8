"""What a checkpoint costs beside torch.save and DCP: the same state, the same ranks, the same disk (part of the demo).

    mpirun -n 2 python -m mpi4py examples/demo_costs.py --folder DISK --local MEMORY --result FILE

Every figure is of the slowest rank, in seconds from the call. Methods take turns; each has one round to warm up that
does not count. Nothing else happens on the ranks meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mpi4py import MPI
from torch import nn

import deeppart

WORLD = MPI.COMM_WORLD
#: Seconds that any single step here may take.
PATIENCE = 120.0

#: One checkpoint -> event -> seconds from the call; "blocked" and "disk" always, "bytes" for what is on disk.
Method = Callable[[Path], dict[str, float]]


@dataclass(frozen=True)
class Training:
    """A transformer and Adam, the same on every rank; 12 bytes of state per parameter."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Every value of the state is another one: what has not changed, deeppart would not write again."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """As the others want it; shares memory with the training."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def make_training(megabytes: int) -> Training:
    torch.manual_seed(0)
    width = 512
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * 12 * width**2)))
    model = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width) for _ in range(layers))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    training = Training(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    training.step()
    return training


def tensors_of(value: object) -> list[torch.Tensor]:
    """Of nested dicts."""
    if isinstance(value, dict):
        return [tensor for entry in value.values() for tensor in tensors_of(entry)]
    return [value] if isinstance(value, torch.Tensor) else []


def size_of(path: Path) -> int:
    """Bytes of all files under a path."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def by_torch_save(training: Training) -> Method:
    """Rank 0 writes everything, the others wait for it. torch.save leaves the data in memory: fsync is added here."""

    def save(path: Path) -> dict[str, float]:
        state = training.state_dict()
        began = time.perf_counter()
        if WORLD.rank == 0:
            torch.save(state, path)
        WORLD.Barrier()
        blocked = time.perf_counter() - began
        if WORLD.rank == 0:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return {"blocked": blocked, "disk": time.perf_counter() - began, "bytes": float(size_of(path))}

    return save


def by_dcp(training: Training, keep_stager: bool) -> Method | None:
    """torch.distributed.checkpoint.async_save over gloo, as in its tutorial or with its staging memory kept."""
    options: dict[str, Any] = {}
    if keep_stager:
        try:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        except ImportError:  # before torch 2.8
            return None
        options["async_stager"] = DefaultStager(StagingOptions(False, False, False, False))

    def save(path: Path) -> dict[str, float]:
        state = training.state_dict()
        began = time.perf_counter()
        future: Any = dcp.async_save(state, checkpoint_id=str(path), **options)
        blocked = time.perf_counter() - began
        getattr(future, "upload_completion", future).result(PATIENCE)
        disk = time.perf_counter() - began
        WORLD.Barrier()
        return {"blocked": blocked, "disk": disk, "bytes": float(size_of(path))}

    return save


def by_deeppart(training: Training, checkpointer: deeppart.Checkpointer) -> Method:
    """Every rank captures its share and goes on; the levels follow in the background."""
    state = {"model": training.model, "optimizer": training.optimizer}
    steps = iter(range(1_000_000))

    def save(path: Path) -> dict[str, float]:
        pending = checkpointer.checkpoint(state, step=next(steps))
        pending.wait("persistent", timeout=PATIENCE)
        report = pending.report
        local, persistent = report.levels["local"], report.levels["persistent"]
        assert local.seconds is not None and persistent.seconds is not None
        return {
            "blocked": report.blocked_s,
            "local": report.blocked_s + local.seconds,
            "disk": report.blocked_s + persistent.seconds,
            "bytes": float(WORLD.allreduce(persistent.nbytes)),
        }

    return save


def measure(
    training: Training, methods: dict[str, Method], folder: Path, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Every method in turn, ``rounds`` times after one to warm up; figures of the slowest rank."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    for number in range(rounds + 1):
        for index, (name, save) in enumerate(methods.items()):
            training.step()
            WORLD.Barrier()
            taken = save(folder / f"{index}-{number}")
            slowest = {event: WORLD.allreduce(value, op=MPI.MAX) for event, value in taken.items()}
            if number > 0:
                figures[name].append(slowest)
        if WORLD.rank == 0:  # the disk need not hold all rounds; removing takes time that is nobody's
            for path in folder.glob(f"*-{number}"):
                path.unlink() if path.is_file() else shutil.rmtree(path)
    return figures


def join_gloo() -> None:
    """The same ranks as a torch.distributed job."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = WORLD.bcast(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=WORLD.rank, world_size=WORLD.size, timeout=timedelta(seconds=PATIENCE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="on disk, for everything persistent")
    parser.add_argument("--local", type=Path, required=True, help="deeppart's node-local level")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    join_gloo()
    training = make_training(args.megabytes)
    config = deeppart.Config(
        persistent_dir=str(args.folder / "deeppart"),
        local_dir=str(args.local),
        compression="none",  # the same bytes as the others write
        keep={"persistent": 0},  # removing old checkpoints is not part of what is measured, for nobody
        timeout=PATIENCE,
    )
    with deeppart.Checkpointer(config) as checkpointer:
        methods: dict[str, Method | None] = {
            "torch.save on rank 0": by_torch_save(training),
            "dcp.async_save": by_dcp(training, keep_stager=False),
            "dcp.async_save, warm stager": by_dcp(training, keep_stager=True),
            "deeppart": by_deeppart(training, checkpointer),
        }
        present = {name: method for name, method in methods.items() if method}
        figures = measure(training, present, args.folder, args.rounds)
    if WORLD.rank == 0:
        nbytes = sum(tensor.nbytes for tensor in tensors_of(training.state_dict()))
        medians = {
            name: {event: statistics.median(each[event] for each in taken) for event in taken[0]}
            for name, taken in figures.items()
        }
        spans = {
            name: {event: (min(e[event] for e in taken), max(e[event] for e in taken)) for event in taken[0]}
            for name, taken in figures.items()
        }
        result = {"state_bytes": nbytes, "ranks": WORLD.size, "rounds": args.rounds, "median": medians, "span": spans}
        args.result.write_text(json.dumps(result, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
