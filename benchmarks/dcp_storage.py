"""StorageWriter and StorageReader of deeppart beside DCP's own, under dcp.async_save and dcp.load.

    python benchmarks/dcp_storage.py [--quick] [--ranks 2,4] [--megabytes 800] [--directory /dev/shm] [--json FILE]

A model of 24 layers in float32 with AdamW (fused): once the same on all ranks (DDP), once as DTensors of which each
rank has a part (FSDP2). DCP saves with its best settings: one stager kept for all saves, plans kept
(enable_plan_caching), files without fsync. deeppart saves with capture="eager" and "lazy". They take turns, round after
round; an optimizer step comes before each save, and one right after it. Medians, each of the slowest rank, and the
ratios to DCP:

- *blocked*: until dcp.async_save returns, and the state may change;
- *next step*: of the optimizer, at once; lazy capture copies what that changes until then, and holds it if need be;
- *safe*: until its result is there: for deeppart on the persistent level, with fsync;
- *load*: dcp.load into a state that is there, from a directory, each rank for itself; and by the session of the job;
- *memory*: by which a rank's memory grows during its first save, at its peak; without files that are mapped. What is
  kept for the next save is in it. No optimizer step comes right after that save: it makes new gradients, a third of the
  state, in memory that was given back.

What is loaded is compared. Exit code: 0 measured, 1 malfunction.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict

from benchmarks.dcp_ranks import measure_each, parser_of
from benchmarks.memory import MemoryWatch
from deeppart.interop.dcp import StorageReader, StorageWriter

#: It takes numbers for steps, too, which its annotations do not have.
async_save: Any = dcp.async_save
STATES = ("same on all ranks", "shards")
_TIMEOUT_S = 300.0
_LAYERS = 24


class Training:
    """A model and its optimizer.

    Args:
        name: one of :data:`STATES`.
        megabytes: of the whole state.
    """

    def __init__(self, name: str, megabytes: float, device: str) -> None:
        torch.manual_seed(1)
        rows = max(8, int(megabytes * 1e6 / 3 / (_LAYERS * 1024 * 4)) // 8 * 8)
        sizes = [(1024, rows) if layer % 2 else (rows, 1024) for layer in range(_LAYERS)]
        self.model = nn.Sequential(*(nn.Linear(*size, device=device) for size in sizes))
        if name == "shards":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.step()

    def step(self) -> None:
        """Change all of it."""
        for parameter in self.model.parameters():
            parameter.grad = parameter.detach().sign()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """As trainers give it to DCP."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": 0}


def tensors(item: Any) -> list[torch.Tensor]:
    """Every tensor that this rank has memory of."""
    if isinstance(item, dict):
        return [tensor for each in item.values() for tensor in tensors(each)]
    return [getattr(item, "_local_tensor", item)] if isinstance(item, torch.Tensor) else []


class Stock:
    """DCP's own writer and reader."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        # From a GPU by way of pinned memory that is kept. (DefaultStager of torch 2.11 fails under Python 3.12.)
        self._stager: Any = DefaultStager(StagingOptions(False, False, False, False))
        if device != "cpu":
            self._stager = BlockingAsyncStager(cache_staged_state_dict=True)

    def save(self, state: dict[str, Any], step: int) -> Any:
        """Begin a save."""
        return async_save(
            state,
            storage_writer=FileSystemWriter(self._path / str(step), sync_files=False),
            planner=DefaultSavePlanner(enable_plan_caching=True),
            async_stager=self._stager,
        )

    def loads(self, step: int) -> dict[str, Callable[[dict[str, Any]], None]]:
        """Ways to load a step."""
        return {"load": lambda state: dcp.load(state, storage_reader=FileSystemReader(self._path / str(step)))}

    def remove(self, step: int) -> None:
        """Remove a step."""
        if dist.get_rank() == 0:
            shutil.rmtree(self._path / str(step), ignore_errors=True)

    def close(self) -> None:
        """End it."""
        self._stager.close()


class Deeppart:
    """The library's.

    Args:
        capture: as of :class:`deeppart.Config`.
    """

    def __init__(self, path: Path, device: str, capture: str = "eager") -> None:
        self._path = path / f"deeppart-{capture}"
        settings: dict[str, Any] = {"keep": {"persistent": 1}, "timeout": _TIMEOUT_S, "capture": capture}
        self._group = dist.new_group(backend="gloo")
        self._writer = StorageWriter(self._path, process_group=self._group, **settings)

    def save(self, state: dict[str, Any], step: int) -> Any:
        """Begin a save."""
        return async_save(state, checkpoint_id=step, storage_writer=self._writer, process_group=self._group)

    def loads(self, step: int) -> dict[str, Callable[[dict[str, Any]], None]]:
        """Ways to load a step."""
        sources = {"load": StorageReader(self._path), "load, session": StorageReader(self._writer)}
        return {name: partial(dcp.load, checkpoint_id=step, storage_reader=source) for name, source in sources.items()}

    def remove(self, step: int) -> None:
        """The library does it."""

    def close(self) -> None:
        """End it."""
        self._writer.close()


def timed(call: Callable[[], Any]) -> float:
    """Seconds of the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return slowest(time.perf_counter() - began)


def slowest(seconds: float) -> float:
    """Of all ranks."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def measure(rank: int, ranks: int, options: argparse.Namespace, results: Path) -> None:
    """What one rank does; rank 0 leaves the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{results.parent}/meeting", rank=rank, world_size=ranks)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.state or STATES:
        training, live = (Training(name, options.megabytes, options.device) for _ in range(2))
        where = results.parent / name.replace(" ", "-")
        makers: dict[str, Callable[[Path, str], Stock | Deeppart]] = {
            "DCP": Stock,
            "deeppart": Deeppart,
            "deeppart, lazy": partial(Deeppart, capture="lazy"),
        }
        contestants = {each: make(where, options.device) for each, make in makers.items()}
        figures: dict[str, dict[str, list[float]]] = {each: {} for each in contestants}
        for turn in range(2 if options.quick else 2 + options.repeat):
            for contestant, each in contestants.items():
                seen = _turn(each, training, live, turn + 1, results.parent, at_once=turn > 0)
                for key, value in seen.items():
                    if (key == "memory") == (turn == 0):
                        figures[contestant].setdefault(key, []).append(value)
        for each in contestants.values():
            each.close()
        found[name] = {
            contestant: {key: median(values) for key, values in each.items()} for contestant, each in figures.items()
        }
        shutil.rmtree(where, ignore_errors=True)
    if rank == 0:
        results.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _turn(
    contestant: Stock | Deeppart, training: Training, live: Training, step: int, files: Path, *, at_once: bool
) -> dict[str, float]:
    """One save and its loads.

    Args:
        at_once: training goes on while the save does.
    """
    training.step()  # on a GPU this may still run when the save begins
    state = training.state() | {"step": step}
    expected = [tensor.clone() for tensor in tensors(state)]
    gc.collect()
    _wait_for_gpu()
    with MemoryWatch(files) as peak:
        dist.barrier()
        began = time.perf_counter()
        saving = contestant.save(state, step)
        blocked = time.perf_counter() - began
        if at_once:
            training.step()
        _wait_for_gpu()
        stepped = time.perf_counter() - began - blocked
        saving.result(_TIMEOUT_S)  # nothing else between ranks meanwhile: DCP's thread has the group
        safe = time.perf_counter() - began
    found = {"blocked": slowest(blocked), "next step": slowest(stepped), "safe": slowest(safe)}
    found["memory"] = slowest(peak.growth_bytes)
    for name, load in contestant.loads(step).items():
        into = live.state()
        for tensor in tensors(into):
            tensor.zero_()
        found[name] = timed(partial(load, into))
        if into["step"] != step or not all(map(torch.equal, tensors(into), expected)):
            sys.exit(f"dcp_storage: MALFUNCTION, {name} gives something else")
    dist.barrier()
    contestant.remove(step)
    dist.barrier()
    return found


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def show(found: dict[str, Any], ranks: int, console: Console) -> None:
    """A table of one number of ranks."""
    table = Table(title=f"dcp.async_save and dcp.load on {ranks} ranks", title_justify="left")
    for column in ("state", "", "DCP", "deeppart", "deeppart / DCP", "lazy", "lazy / DCP"):
        table.add_column(column, justify="left" if column in ("state", "") else "right")
    for name, each in found.items():
        theirs = each["DCP"]
        for key, eager in each["deeppart"].items():
            other, lazy = theirs[key.partition(",")[0]], each["deeppart, lazy"][key]
            three = [f"{one / 1e6:.0f} MB" if key == "memory" else f"{one:.3f} s" for one in (other, eager, lazy)]
            ratios = [f"{value / max(other, 1e-9):.2f}" for value in (eager, lazy)]
            table.add_row(name, key, *three[:2], ratios[0], three[2], ratios[1])
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_of(__doc__, "two that do")
    parser.add_argument("--megabytes", type=float, default=800.0, help="of the whole state (default 800)")
    parser.add_argument("--state", choices=STATES, action="append", help="only this one (default: each of them)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the tensors; ranks share one GPU")
    options = parser.parse_args()
    if options.quick:
        options.megabytes = min(options.megabytes, 40.0)
    return measure_each("dcp-storage", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
