"""The planner for DCP on several ranks: how even files are, and that DCP alone loads what it has planned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.tensor

from deeppart.interop.dcp import load
from tests.mpi.torchrun import torchrun

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(torch.distributed.tensor, "Shard"), reason="DTensor is public since torch 2.5"),
]


def test_shards_and_plain_tensors_of_four_ranks(tmp_path: Path) -> None:
    from tests.sharded.dcp_planner_job import global_state

    ranks = torchrun(4, ["-m", "tests.sharded.dcp_planner_job", str(tmp_path)], tmp_path)
    for rank, found in enumerate(ranks):
        assert found["same"] == found["other"] == [] and found.get("fewer ranks", []) == [], found
        assert found["evenness"] < 1.02 < found["stock evenness"], found
        assert found["fsdp"]
        assert found["background"] == [4, [2, 4], 4.0, 4.0, 4]
        texts, rng, same = found["differing"]
        assert rng == [0] and same
        assert bool(texts) == (rank == 0) and all("rng (of rank 1)" in text for text in texts)
        # Shards stay where they are: nodes are balanced, not files.
        first, second = sum(found["files"][:2]), sum(found["files"][2:])
        assert max(first, second) * 2 / (first + second) < 1.02
    values = global_state(1)
    for name in ("balanced", "node"):
        state = load(tmp_path / name)
        assert all(torch.equal(state[each], x) and state[each].dtype == x.dtype for each, x in values.items())
        assert torch.equal(state["plain"], torch.arange(100_000.0).view(1000, 100).T) and state["step"] == 3
        assert [int(state["of"][f"rank {rank}"].unique()) for rank in range(4)] == [0, 1, 2, 3]
