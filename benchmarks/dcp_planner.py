"""BalancedSavePlanner beside DCP's own planner, under dcp.save: how even the files are, and how long a save takes.

    python benchmarks/dcp_planner.py [--quick] [--ranks 2,4] [--directory /dev/shm] [--json FILE]

States of float32, the same on all ranks: BERT-large by shapes with Adam, at a scale; one large embedding beside small
layers; and the BERT state as DTensors, with two copies of each shard (HSDP; on 4 ranks). All planners take turns, round
after round, each with a planner of its own for every save; medians. Files are removed after every save, and are written
without fsync. What stock ``dcp.load`` reads back is compared, once for each planner. Exit code: 0 measured, 1
malfunction.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
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
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, SavePlanner

from benchmarks.dcp_ranks import measure_each, parser_of
from benchmarks.workload import make_workload
from deeppart.interop.dcp import BalancedSavePlanner

STATES = ("bert+adam", "embedding", "hybrid shards")
PLANNERS: dict[str, Callable[[int], SavePlanner]] = {
    "DCP's": lambda rank: DefaultSavePlanner(),
    "balanced": lambda rank: BalancedSavePlanner(),
    "DCP's, cached": lambda rank: DefaultSavePlanner(enable_plan_caching=True),
}


def make_state(name: str, quick: bool) -> dict[str, Any]:
    """On a rank of an initialized process group."""
    torch.manual_seed(1)  # the same on all ranks
    if name == "embedding":
        rows = 5000 if quick else 150_000
        layers = {f"layer{number}": torch.randn(rows // 100, 512) for number in range(40)}
        return {"embedding": torch.randn(rows, 512), **layers, "step": 5}
    tree = make_workload("bert-large+adam", 0.01 if quick else 0.1, 24, 1).tree
    return tree if name == "bert+adam" else _sharded(tree)


def _sharded(tree: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))

    def shard(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shard(each) for key, each in item.items()}
        if isinstance(item, torch.Tensor) and item.ndim:
            return distribute_tensor(item, mesh, [Replicate(), Shard(0)])
        return item

    return dict(shard(tree))


def measure(rank: int, ranks: int, options: argparse.Namespace, results: Path) -> None:
    """What one rank does; rank 0 leaves the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{results.parent}/meeting", rank=rank, world_size=ranks)
    found: dict[str, dict[str, Any]] = {}
    for name in STATES:
        if name == "hybrid shards" and ranks < 4:
            continue
        state = make_state(name, options.quick)
        times: dict[str, list[float]] = {each: [] for each in PLANNERS}
        for turn in range(2 if options.quick else 1 + options.repeat):
            for planner, make in PLANNERS.items():
                path = results.parent / f"{name} {turn}"
                seconds, evenness, files = save(state, path, make(rank), rank)
                if turn:
                    times[planner].append(seconds)
                    found.setdefault(name, {})[planner] = {"evenness": evenness, "files": files}
                elif not same(state, path):
                    sys.exit("dcp_planner: MALFUNCTION, dcp.load reads something else")
                dist.barrier()
                if rank == 0:
                    shutil.rmtree(path)
                dist.barrier()
        for planner, each in times.items():
            found[name][planner] |= {"seconds": median(each), "fastest": min(each), "slowest": max(each)}
    if rank == 0:
        results.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def save(state: dict[str, Any], path: Path, planner: SavePlanner, rank: int) -> tuple[float, float, int]:
    """Seconds until all ranks have saved, the longest file by the mean, and how many files have content."""
    dist.barrier()
    began = time.perf_counter()
    dcp.save(state, storage_writer=FileSystemWriter(path, sync_files=False), planner=planner)
    dist.barrier()
    seconds = time.perf_counter() - began
    ranks = range(dist.get_world_size())
    sizes = [sum(file.stat().st_size for file in path.glob(f"__{each}_*")) for each in ranks]
    return seconds, max(sizes) * len(sizes) / sum(sizes), sum(size > 0 for size in sizes)


def same(state: dict[str, Any], path: Path) -> bool:
    """True if stock DCP reads what was saved."""
    live = _cleared(state)
    dcp.load(live, checkpoint_id=path)
    return all(map(torch.equal, _local_tensors(live), _local_tensors(state)))


def _cleared(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _cleared(each) for key, each in item.items()}
    return torch.zeros_like(item) if isinstance(item, torch.Tensor) else item


def _local_tensors(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, dict):
        for each in item.values():
            yield from _local_tensors(each)
    elif isinstance(item, torch.Tensor):
        yield getattr(item, "_local_tensor", item)


def show(found: dict[str, Any], ranks: int, console: Console) -> None:
    """A table of one number of ranks."""
    table = Table(title=f"dcp.save on {ranks} ranks", title_justify="left")
    for column in ("state", "planner", "longest file / mean", "files", "seconds (fastest-slowest)"):
        table.add_column(column, justify="left" if column in ("state", "planner") else "right")
    for name, planners in found.items():
        for planner, each in planners.items():
            times = f"{each['seconds']:.2f} ({each['fastest']:.2f}-{each['slowest']:.2f})"
            table.add_row(name, planner, f"{each['evenness']:.3f}", str(each["files"]), times)
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_of(__doc__, "one that does")
    options = parser.parse_args()
    return measure_each("dcp-planner", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
