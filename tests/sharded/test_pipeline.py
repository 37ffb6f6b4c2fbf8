"""Pipeline stages have other layers on other ranks: the state that is saved is all of them together."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh

import deeppart
from tests.sharded.layouts import Model, build, clear, fill, fully_shard, mesh_of, tensors, wrong
from tests.sharded.ranks import run_job

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def stage(which: int, mesh: DeviceMesh) -> dict[str, Any]:
    """The layers of a stage, sharded over its ranks; their names are those in the whole model."""
    torch.manual_seed(1)
    model = Model()
    if which == 0:
        del model.blocks[1], model.scale
    else:
        del model.embedding
        model.blocks = nn.ModuleDict({"1": model.blocks[1]})  # type: ignore[assignment]
    for block in model.blocks.values() if which else model.blocks:  # type: ignore[operator]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    model_state = get_model_state_dict(model)
    if which:  # a buffer that only this stage has
        model_state["last"] = torch.zeros(7)
    state = {"model": model_state, "optimizer": get_optimizer_state_dict(model, optimizer), "step": 0}
    return state | {"flat": flattened(model, optimizer)}


def flattened(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """One dict of tensors and numbers, whose keys name the parameters: those of a stage."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    found = get_optimizer_state_dict(model, optimizer, options=options)
    return {key: item.clone() if isinstance(item, torch.Tensor) else 0 for key, item in found.items()}


def number(key: str, step: int) -> float:
    return step + zlib.crc32(key.encode()) / 7


def set_numbers(state: dict[str, Any], step: int) -> None:
    state["flat"] |= {key: number(key, step) for key, item in state["flat"].items() if isinstance(item, (int, float))}


def wrong_numbers(state: dict[str, Any], step: int) -> list[str]:
    numbers = {key: item for key, item in state["flat"].items() if not isinstance(item, torch.Tensor)}
    assert any("blocks.1.norm" in key for key in numbers) or any("embedding" in key for key in numbers)
    return [key for key, item in numbers.items() if item != number(key, step)]


def in_stages(directory: Path) -> dict[str, Any]:
    """Two stages of two ranks, which have other layers; and back onto other layouts."""
    rank, told = dist.get_rank(), dict[str, Any]()
    meshes = [DeviceMesh("cpu", torch.tensor(ranks)) for ranks in ([0, 1], [2, 3])]

    def job(name: str) -> deeppart.Checkpointer:
        return deeppart.Checkpointer(persistent_dir=str(directory / name), timeout=60, node_size=1)

    state = stage(rank // 2, meshes[rank // 2])
    with job("stages") as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2):
            fill(state, step)
            set_numbers(state, step)
            ck.checkpoint(state, step).wait("persistent")
    told["notices"] = [str(each.message) for each in caught if issubclass(each.category, deeppart.DeeppartWarning)]
    clear(state)
    with job("stages") as ck:
        told["same"] = [ck.restore(state), wrong(state, 2), wrong_numbers(state, 2)]
    exchanged = stage(1 - rank // 2, meshes[rank // 2])
    clear(exchanged)
    with job("stages") as ck:
        told["exchanged"] = [ck.restore(exchanged), wrong(exchanged, 2), wrong_numbers(exchanged, 2)]
    whole = build("fsdp", mesh_of("fsdp", 4), flattened)
    whole["model"]["last"] = torch.zeros(7)
    del whole["plain"]
    clear(whole)
    with job("stages") as ck:
        told["fsdp"] = [ck.restore(whole), wrong(whole, 2), wrong_numbers(whole, 2)]
    fill(whole, 5)
    set_numbers(whole, 5)
    with job("whole") as ck:
        ck.checkpoint(whole, 5).wait("persistent")
    clear(state)
    with job("whole") as ck:
        told["back"] = [ck.restore(state), wrong(state, 5), wrong_numbers(state, 5)]
    return told


def test_stages_come_back_as_stages_and_as_a_whole_and_a_whole_as_stages(tmp_path: Path) -> None:
    found = run_job(4, in_stages, tmp_path)
    for each in found:
        assert each["notices"] == []
        for restored, step in (("same", 2), ("exchanged", 2), ("fsdp", 2), ("back", 5)):
            assert each[restored] == [step, [], []], restored
    loaded = deeppart.load(tmp_path / "stages")
    assert wrong(loaded, 2) == wrong_numbers(loaded, 2) == []
    paths = {path for path, _ in tensors(loaded)}
    assert {"/model/embedding.weight", "/model/blocks.1.up.bias", "/model/last", "/model/scale"} <= paths
    assert {"param_groups.embedding.weight.lr", "param_groups.blocks.1.up.bias.lr"} <= loaded["flat"].keys()
    assert {f"/optimizer/state/blocks.{block}.norm.bias/step" for block in (0, 1)} <= paths
