"""Megatron-core's sharded tensors in the form that it gives to PyTorch (``pip install --no-deps megatron-core``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import UnsupportedLeafError
from tests.unit.sharded_states import restore, save

pytest.importorskip("megatron.core.dist_checkpointing")
COLUMNS, ROWS = torch.arange(48.0).view(8, 6), torch.arange(60.0).view(10, 6)


def shard(data: torch.Tensor, *rank_offsets: Any, replica_id: int = 0) -> Any:
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.dist_checkpointing.strategies.checkpointable import CheckpointableShardedTensor

    found = ShardedTensor.from_rank_offsets("key", data, *rank_offsets, replica_id=replica_id)
    return CheckpointableShardedTensor.from_sh_ten(found)


def state(rank: int, scale: float = 1.0) -> dict[str, Any]:
    """Of four ranks: two halves of the columns, on two ranks each; and runs of rows, of which rank 0 has two."""
    from megatron.core.dist_checkpointing.strategies.checkpointable import LocalShardsContainer

    half, replica = rank % 2, rank // 2
    columns = (COLUMNS * scale)[:, 3 * half : 3 * half + 3].clone()
    rows = [shard((ROWS * scale)[2 * n : 2 * n + 2].clone(), (0, n, 5)) for n in range(rank, 5, 4)]
    return {
        "columns": LocalShardsContainer([shard(columns, (1, half, 2), replica_id=replica)]),
        "rows": LocalShardsContainer(rows),
        "bias": torch.ones(3) * scale,
    }


def test_they_come_back_as_they_were_and_as_whole_tensors(tmp_path: Path) -> None:
    save(tmp_path, [state(rank) for rank in range(4)])
    live = [state(rank, 0.0) for rank in range(4)]
    assert restore(tmp_path, live) == 1
    for rank, found in enumerate(live):
        for name in ("columns", "rows"):
            pairs = zip(found[name]._local_shards, state(rank)[name]._local_shards, strict=True)
            assert all(torch.equal(one._sh_ten.data, other._sh_ten.data) for one, other in pairs)
        assert torch.equal(found["bias"], torch.ones(3))
    loaded = deeppart.load(tmp_path)
    assert torch.equal(loaded["columns"], COLUMNS) and torch.equal(loaded["rows"], ROWS)


def test_its_own_record_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match=r"megatron.*ShardedTensor(.|\n)*deeppart\.interop\.megatron"):
        save(tmp_path, [{"w": shard(ROWS, (0, 0, 1))._sh_ten}])
