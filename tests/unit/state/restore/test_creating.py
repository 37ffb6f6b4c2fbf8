"""Sharded tensors that a live state lacks: an optimizer that has not stepped gets them, split like its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import deeppart
from deeppart.errors import StructureMismatchError
from tests.unit.sharded_groups import one_rank


class Nothing(NamedTuple):
    """A container without keys."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with one_rank() as found:
        yield found


def trained(mesh: DeviceMesh, *, step: bool, groups: bool = False) -> tuple[dict[str, Any], torch.optim.Optimizer]:
    torch.manual_seed(3)
    shapes = [((5, 3), Shard(0)), ((4,), Replicate()), ((2, 2), Shard(1))]
    parameters = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement])) for shape, placement in shapes
    ]
    plain = torch.nn.Parameter(torch.randn(3))
    every: list[Any] = [*parameters, plain]
    in_groups: list[Any] = [{"params": every[2:]}, {"params": every[:2], "lr": 0.5}]
    optimizer = torch.optim.AdamW(in_groups if groups else every)
    if step:
        for parameter in every:
            parameter.grad = torch.ones_like(parameter) * 2
        optimizer.step()
    return {"model": list(every), "optimizer": optimizer, "empty": Nothing()}, optimizer


@pytest.mark.parametrize("groups", [False, True])
def test_an_optimizer_that_has_not_stepped_gets_its_moments(tmp_path: Path, mesh: DeviceMesh, groups: bool) -> None:
    state, before = trained(mesh, step=True, groups=groups)
    live, after = trained(mesh, step=False, groups=groups)
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, step=1).wait(timeout=60)
        assert ck.restore(live) == 1
    for old, new in zip(before.param_groups, after.param_groups, strict=True):
        for one, other in zip(old["params"], new["params"], strict=True):
            assert after.state[other].keys() == {"step", "exp_avg", "exp_avg_sq"}
            for name, value in after.state[other].items():
                expected = before.state[one][name]
                assert type(value) is type(expected)
                if isinstance(value, DTensor):
                    assert isinstance(other, DTensor) and value.placements == other.placements
                    value, expected = value._local_tensor, expected._local_tensor
                assert torch.equal(value, expected)
    after.step()  # without gradients: it can use what it was given


def test_what_belongs_to_a_parameter_that_is_not_sharded_here_is_made_whole(tmp_path: Path, mesh: DeviceMesh) -> None:
    """As where FSDP sharded everything, and tensor parallelism shards a part of it."""
    state, before = trained(mesh, step=True)
    parameters = [torch.nn.Parameter(torch.zeros(5, 3)), *trained(mesh, step=False)[0]["model"][1:]]
    after = torch.optim.AdamW(parameters)
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, step=1).wait(timeout=60)
        assert ck.restore({"model": list(parameters), "optimizer": after, "empty": Nothing()}) == 1
    for one, other in zip(before.param_groups[0]["params"], parameters, strict=True):
        assert torch.equal(_whole(one), _whole(other))
        for name in ("exp_avg", "exp_avg_sq"):
            assert isinstance(after.state[other][name], DTensor) == isinstance(other, DTensor)
            assert torch.equal(_whole(before.state[one][name]), _whole(after.state[other][name]))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_what_belongs_to_no_parameter_is_left_out_and_told(tmp_path: Path, mesh: DeviceMesh) -> None:
    whole = torch.arange(10.0)
    state = {"a": distribute_tensor(whole, mesh, [Shard(0)]), "b": {"c": distribute_tensor(whole, mesh, [Shard(0)])}}
    live: dict[str, Any] = {"a": distribute_tensor(torch.zeros(10), mesh, [Shard(0)]), "b": {}}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, step=1).wait(timeout=60)
        with pytest.warns(deeppart.DeeppartWarning, match="nor says how they are split: b/c$"):
            assert ck.restore(live) == 1
        assert torch.equal(live["a"]._local_tensor, whole) and live["b"] == {}
        # Where nothing is sharded, it is created as a whole.
        plain: dict[str, Any] = {"a": torch.zeros(10), "b": {}}
        assert ck.restore(plain) == 1
    assert torch.equal(plain["b"]["c"], whole) and type(plain["b"]["c"]) is torch.Tensor


def test_a_moment_of_another_shape_than_its_parameter_is_refused(tmp_path: Path, mesh: DeviceMesh) -> None:
    state, optimizer = trained(mesh, step=True)
    first = optimizer.param_groups[0]["params"][0]
    optimizer.state[first]["exp_avg"] = distribute_tensor(torch.zeros(15), mesh, [Shard(0)])
    live, _ = trained(mesh, step=False)
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, step=1).wait(timeout=60)
        with pytest.raises(StructureMismatchError, match="not known how to split") as caught:
            ck.restore(live)
    assert "optimizer/state/0/exp_avg" in str(caught.value)
