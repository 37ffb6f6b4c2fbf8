"""Replicas of a shard that come to differ: found, told, saved for each rank, and never taken for one another."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import deeppart
from tests.sharded.layouts import HAS_TWO_DIMENSIONS, build, clear, expected, fill, mesh_of, tensors, wrong
from tests.sharded.ranks import run_job

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

BAD = "/model/blocks.1.up.weight"


def _messages(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if issubclass(each.category, deeppart.DeeppartWarning)]


def diverging(directory: Path) -> dict[str, Any]:
    rank, told = dist.get_rank(), dict[str, Any]()
    state = build("hsdp", mesh_of("hsdp", 4))
    locals_of = {path: getattr(tensor, "_local_tensor", tensor).detach() for path, tensor in tensors(state)}

    def job() -> deeppart.Checkpointer:
        return deeppart.Checkpointer(persistent_dir=str(directory / "ckpt"), keep={"persistent": 9}, timeout=60)

    with job() as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2):
            fill(state, step)
            ck.checkpoint(state, step).wait("persistent")
        told["before"] = _messages(caught)
        fill(state, 3)
        if rank == 2:  # the replica of rank 0
            locals_of[BAD].view(torch.int32)[0, 0] += 1
        ck.checkpoint(state, 3).wait("persistent")
        ck.checkpoint(state, 4).wait("persistent")
        told["after"] = _messages(caught)[len(told["before"]) :]
    mine = locals_of[BAD].clone()
    clear(state)
    with job() as ck:
        told["step"] = ck.restore(state)
    told["own"] = torch.equal(locals_of[BAD], mine)
    told["others"] = [each for each in wrong(state, 3) if each != BAD]
    dist.barrier()
    other = build("fsdp", mesh_of("fsdp", 4))
    clear(other)
    with job() as ck:
        try:
            ck.restore(other)
        except deeppart.DeeppartError as error:
            told["strict"] = [type(error).__name__, str(error)]
        told["untouched"] = all(
            bool((getattr(tensor, "_local_tensor", tensor) == -1).all()) for _, tensor in tensors(other)
        )
        told["rank0"] = ck.restore(other, per_rank="rank0")
    told["of rank 0"] = wrong(other, 3)
    dist.barrier()
    with job() as ck:
        told["earlier"] = ck.restore(other, step=2)
    return told | {"at 2": wrong(other, 2)}


@pytest.mark.now_and_then(2)
@pytest.mark.skipif(not HAS_TWO_DIMENSIONS, reason="this torch has no HSDP state_dict()")
def test_a_replica_with_other_bytes_is_found_and_kept_apart(tmp_path: Path) -> None:
    found = run_job(4, diverging, tmp_path)
    warned = [text for text in found[0]["after"] if "have come to differ" in text]
    assert found[0]["before"] == [] and len(warned) == 1
    assert f"{BAD[1:]}: rank 0 holds other bytes than rank 2" in warned[0]
    for each in found:
        assert (each["step"], each["own"], each["others"]) == (4, True, [])
        assert each["untouched"] and each["of rank 0"] == [] and each["at 2"] == []
    assert {each["strict"][0] for each in found} <= {"PerRankError", "RemoteRankError"}
    assert any(BAD[1:] in each["strict"][1] for each in found)
    loaded = deeppart.load(tmp_path / "ckpt")
    assert wrong(loaded, 3) == []
    other = dict(tensors(deeppart.load(tmp_path / "ckpt", rank=2)))[BAD]
    whole = expected(BAD, other, 3)
    assert (other != whole).sum() == 1
