"""The planner for DCP on several ranks: how even files are, and that DCP alone loads what it has planned.

What DCP has saved, with the planner or with its own, is loaded in one process without process groups, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from deeppart.errors import ReplicaDivergenceWarning
from deeppart.interop import load
from deeppart.interop.dcp import BalancedSavePlanner
from deeppart.interop.dcp.metadata import read_metadata
from tests.sharded.layouts import DTensor, Replicate, Shard, distribute_tensor, fully_shard
from tests.sharded.ranks import run_job

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(torch.distributed.tensor, "Shard"), reason="DTensor is public since torch 2.5"),
]

Layouts = dict[str, tuple[DeviceMesh, list[Any]]]


def global_state(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "hybrid": torch.randn(401, 99),
        "columns": torch.randn(30, 1001).to(torch.bfloat16),
        "uneven": torch.randn(701, 5),
        "fewer": torch.randn(2, 3000),
        "two": torch.randn(300, 200),
        "whole": torch.randn(50000),
        "apart": torch.randn(100, 70),
    }


def distributed(values: dict[str, torch.Tensor], layouts: Layouts) -> dict[str, Any]:
    return {name: distribute_tensor(values[name], mesh, how) for name, (mesh, how) in layouts.items()}


def wrong(state: dict[str, Any], values: dict[str, torch.Tensor]) -> list[str]:
    found = []
    for name, tensor in state.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if tensor.device_mesh.get_coordinate() is not None if isinstance(tensor, DTensor) else True:
            found += [] if torch.equal(whole, values[name]) else [name]
    return found


def evenness(path: Path) -> float:
    sizes = [sum(file.stat().st_size for file in path.glob(f"__{rank}_*")) for rank in range(dist.get_world_size())]
    return max(sizes) * len(sizes) / sum(sizes)


def planned(directory: Path) -> dict[str, Any]:
    """Saved by DCP with our planner, and loaded by DCP alone."""
    rank = dist.get_rank()
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    row, last = DeviceMesh("cpu", list(range(4))), DeviceMesh("cpu", [2, 3])
    layouts: Layouts = {
        "hybrid": (square, [Replicate(), Shard(0)]),
        "columns": (square, [Shard(1), Replicate()]),
        "uneven": (row, [Shard(0)]),
        "fewer": (row, [Shard(0)]),
        "two": (square, [Shard(0), Shard(1)]),
        "whole": (row, [Replicate()]),
        "apart": (last, [Shard(0)]),
    }
    other: Layouts = {name: (row, [Shard(0)]) for name in layouts} | {"two": (square, [Shard(1), Replicate()])}
    values = global_state(1)
    plain = torch.arange(100_000.0).view(1000, 100).T
    state = distributed(values, layouts) | {
        "plain": plain,
        "step": 3,
        "of": {f"rank {rank}": torch.full((2000,), rank)},
    }

    def saved(name: str, save: Callable[[Path], Any]) -> Path:
        save(directory / name)
        dist.barrier()
        return directory / name

    told: dict[str, Any] = {}
    path = saved("balanced", lambda path: dcp.save(state, checkpoint_id=path, planner=BalancedSavePlanner()))
    told["evenness"] = evenness(path)
    told["stock evenness"] = evenness(saved("stock", lambda path: dcp.save(state, checkpoint_id=path)))
    for kind, into in (("same", layouts), ("other", other)):
        live = distributed({name: torch.zeros_like(x) for name, x in values.items()}, into)
        rest = {"plain": torch.zeros(100, 1000), "step": 0}
        target = live | rest
        dcp.load(target, checkpoint_id=path)
        told[kind] = wrong(live, values)
        told[kind] += [] if torch.equal(target["plain"], plain) and target["step"] == 3 else ["rest"]
    # Into plain tensors, on fewer ranks.
    group = dist.new_group([0, 1])
    if rank < 2:
        flat = {name: torch.zeros_like(x) for name, x in values.items()}
        dcp.load(flat, checkpoint_id=path, process_group=group)
        told["fewer ranks"] = wrong(flat, values)
    told["fsdp"] = _through_fsdp(saved, row)
    told["background"] = _in_background(directory / "background", state, plain)
    told["differing"] = _differing(directory / "differing", rank)
    return told


def _through_fsdp(saved: Callable[..., Path], mesh: DeviceMesh) -> bool:
    """Saved from plain tensors, loaded into a model that is sharded."""

    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(301, 77), nn.Linear(77, 5))

    plain = {"model": dict(model().state_dict())}
    path = saved("ddp", lambda path: dcp.save(plain, checkpoint_id=path, planner=BalancedSavePlanner()))
    sharded = model()
    with torch.no_grad():
        for parameter in sharded.parameters():
            parameter.zero_()
    fully_shard(sharded, mesh=mesh)
    live: dict[str, Any] = {"model": get_model_state_dict(sharded)}
    dcp.load(live, checkpoint_id=path)
    # Everybody gathers every tensor, whatever the others hold.
    global_state = {name: live["model"][name].full_tensor() for name in plain["model"]}
    return all(torch.equal(global_state[name], tensor) for name, tensor in plain["model"].items())


def _in_background(path: Path, state: dict[str, Any], plain: torch.Tensor) -> list[Any]:
    """Saved by a thread, and changed in the meantime."""
    mine = {"plain": torch.full_like(plain, 4), "hybrid": state["hybrid"], "n": 4}
    saving: Any = dcp.async_save(mine, checkpoint_id=path, planner=BalancedSavePlanner())
    mine["plain"].fill_(-1)
    mine["n"] = -1
    saving.result()
    dcp.load(mine, checkpoint_id=path)
    return [float(mine["plain"].min()), float(mine["plain"].max()), mine["n"]]


def _differing(path: Path, rank: int) -> list[Any]:
    """A tensor that each rank has for itself is not put together from pieces of all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReplicaDivergenceWarning)
        mine = {"rng": torch.full((5056,), rank, dtype=torch.uint8), "same": torch.ones(5000)}
        dcp.save(mine, checkpoint_id=path, planner=BalancedSavePlanner())
    live = {"rng": torch.zeros(5056, dtype=torch.uint8), "same": torch.zeros(5000)}
    dcp.load(live, checkpoint_id=path)
    texts = [str(each.message) for each in caught if each.category is ReplicaDivergenceWarning]
    return [texts, live["rng"].unique().tolist(), bool(live["same"].all())]


def test_shards_and_plain_tensors_of_four_ranks(tmp_path: Path) -> None:
    for rank, found in enumerate(run_job(4, planned, tmp_path)):
        assert found["same"] == found["other"] == [] and found.get("fewer ranks", []) == [], found
        assert found["evenness"] < 1.02 < found["stock evenness"], found
        assert found["fsdp"]
        assert found["background"] == [4.0, 4.0, 4]
        texts, rng, same = found["differing"]
        assert rng == [0] and same
        assert bool(texts) == (rank == 0) and all("rng (of rank 1)" in text for text in texts)
    values = global_state(1)
    for name in ("stock", "balanced"):
        state = load(tmp_path / name)
        assert all(torch.equal(state[each], x) and state[each].dtype == x.dtype for each, x in values.items())
        assert torch.equal(state["plain"], torch.arange(100_000.0).view(1000, 100).T) and state["step"] == 3
        assert [int(state["of"][f"rank {rank}"].unique()) for rank in range(4)] == [0, 1, 2, 3]
    stored = read_metadata(tmp_path / "stock").tensors
    assert len(stored["two"].chunks) == 4 and len(stored["fewer"].chunks) == 2
    assert load(tmp_path / "stock", "two").keys() == {"two"}
