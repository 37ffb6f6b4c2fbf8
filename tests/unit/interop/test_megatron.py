"""Sharded state dicts of Megatron-core: what is saved of which rank, and loaded on another layout."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import StateError, UnsupportedLeafError
from tests.unit.comm.worlds import LIMIT_S
from tests.unit.sharded_states import checkpointer, on_ranks

WEIGHT = torch.arange(1 << 16, dtype=torch.float32).view(-1, 16).to(torch.bfloat16)


def state(tp: int, ranks: int, replica: int, scale: float = 1.0) -> dict[str, Any]:
    """A tensor in rows, an object of Transformer Engine's kind, and what is common, or of one process."""
    mapping = pytest.importorskip("megatron.core.dist_checkpointing.mapping")
    rows = len(WEIGHT) // ranks
    mine = (WEIGHT * scale)[tp * rows : (tp + 1) * rows].clone()
    extra = {"amax": torch.tensor([scale]), "at": (1, 2)}
    return {
        "weight": mapping.ShardedTensor.from_rank_offsets("weight", mine, (0, tp, ranks), replica_id=(0, replica)),
        "again": [mapping.ShardedTensor.from_rank_offsets("weight", mine.clone(), (0, tp, ranks), replica_id=(1, 0))],
        "extra": mapping.ShardedObject("extra", io.BytesIO(b"\x80" + bytes([tp])), (ranks,), (tp,), replica),
        "small": mapping.ShardedObject("small", extra, (1,), (0,), (tp, replica)),
        "iteration": 7 if scale else 0,
        "process": mapping.LocalNonpersistentObject(f"{tp} {replica}"),
    }


def saved(root: Path, scales: tuple[float, float], **how: Any) -> list[int]:
    """By four ranks, of which two are replicas; bytes that each copied."""
    from deeppart.interop.megatron import save

    def on_rank(comm: Comm) -> int:
        replica = comm.rank // 2
        with checkpointer(root, comm) as ck:
            pending = save(ck, state(comm.rank % 2, 2, replica, scales[replica]), 7, **how)
            pending.wait("persistent", timeout=LIMIT_S)
            return pending.report.raw_bytes

    return on_ranks(4, on_rank)


def check_loaded(root: Path, ranks: int) -> None:
    from deeppart.interop.megatron import load

    def on_rank(comm: Comm) -> None:
        live = state(comm.rank, ranks, 0, 0.0)
        if ranks == 1:  # its objects are others
            del live["extra"]
        before = live["weight"].data
        with checkpointer(root, comm) as ck:
            step, found = load(ck, live) or (None, {})
        rows = len(WEIGHT) // ranks
        expected = WEIGHT[comm.rank * rows : (comm.rank + 1) * rows]
        assert step == 7 and found["iteration"] == 7 and found["process"] == f"{comm.rank} 0"
        assert found["weight"] is before and torch.equal(before, expected)
        assert torch.equal(found["again"][0], expected)
        assert found["small"]["at"] == (1, 2) and found["small"]["amax"] == 1.0
        if ranks == 2:
            assert found["extra"].getvalue() == b"\x80" + bytes([comm.rank])

    on_ranks(ranks, on_rank)


@pytest.mark.parametrize("share", [False, True])
def test_replicas_are_saved_once_by_the_main_one_or_by_all(tmp_path: Path, share: bool) -> None:
    pytest.importorskip("megatron.core.dist_checkpointing")
    copied = saved(tmp_path, (1.0, 1.0), share_replicas=share)
    assert sum(copied) < 1.1 * WEIGHT.nbytes
    assert all(each > 10_000 for each in copied) if share else max(copied[2:]) < 10_000 < min(copied[:2])
    check_loaded(tmp_path, 2)
    check_loaded(tmp_path, 1)


def test_of_replicas_that_differ_the_main_one_counts(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.dist_checkpointing")
    saved(tmp_path, (1.0, -1.0))
    check_loaded(tmp_path, 2)
    check_loaded(tmp_path, 1)


def test_a_part_is_loaded_and_what_the_checkpoint_lacks_is_refused(tmp_path: Path) -> None:
    """An optimizer, say, that is not asked for is not read; what is common is returned."""
    pytest.importorskip("megatron.core.dist_checkpointing")
    from deeppart.interop.megatron import load

    saved(tmp_path, (1.0, 1.0))

    def loaded(comm: Comm) -> Any:
        live = state(0, 1, 0, 0.0)
        with checkpointer(tmp_path, comm) as ck:
            small = load(ck, {"small": live["small"]})
            nothing = load(ck, {})
            live["weight"].key = "no such key"
            with pytest.raises(StateError, match="no such key"):
                load(ck, {"weight": live["weight"]})
            return small, nothing, ck.restored

    ((small, nothing, _),) = on_ranks(1, loaded)
    assert small.state_dict.keys() == {"small", "iteration"} and small.state_dict["small"]["at"] == (1, 2)
    assert nothing.state_dict == {"iteration": 7}


def test_another_shape_and_unknown_objects_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.dist_checkpointing")
    from deeppart.interop.megatron import load, save

    saved(tmp_path, (1.0, 1.0))
    live = state(0, 1, 0, 0.0)
    del live["extra"]
    live["weight"].data = torch.full((8, 16), 5.0, dtype=torch.bfloat16)
    live["weight"].local_shape = live["weight"].global_shape = (8, 16)
    del live["again"]

    def refused(comm: Comm) -> None:
        with checkpointer(tmp_path, comm) as ck:
            with pytest.raises(StateError, match="weight"):
                load(ck, live)
            assert (live["weight"].data == 5.0).all()
            live["small"].data = object()
            with pytest.raises(UnsupportedLeafError, match="small/shard_0_1"):
                save(ck, live, 8)

    on_ranks(1, refused)
