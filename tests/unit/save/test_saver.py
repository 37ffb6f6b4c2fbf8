"""What is derived from a state's structure stays right when a call comes to nothing in between."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import Comm, SingleComm
from deeppart.errors import RanksDisagreeError
from deeppart.save import ShareSize, size_share
from deeppart.save.saver import raise_disagreement
from tests.unit.comm.worlds import LIMIT_S, on_all, world


def test_a_new_structure_seen_by_a_skipped_checkpoint_is_planned_for_later(tmp_path: Path) -> None:
    first = {"w": torch.arange(300_000, dtype=torch.float32)}
    second = {"a": torch.full((200_000,), 7.0), "b": torch.ones(400_000, dtype=torch.float64)}
    config = deeppart.Config(persistent_dir=str(tmp_path), on_busy="skip", flush_bandwidth=3e6, compression="none")
    with deeppart.Checkpointer(config) as ck:
        ck.checkpoint(first, step=1).wait(timeout=200)
        slow = ck.checkpoint(first, step=2)
        assert ck.checkpoint(second, step=3).skipped
        slow.wait(timeout=200)
        ck.checkpoint(second, step=4).wait(timeout=200)
    loaded = deeppart.load(tmp_path, step=4)
    assert loaded.keys() == second.keys()
    assert all(torch.equal(loaded[name], second[name]) for name in second)


def test_a_new_structure_in_a_refused_call_is_planned_for_later(tmp_path: Path) -> None:
    first = {"w": torch.arange(300_000, dtype=torch.float32)}
    second = {"a": torch.full((200_000,), 7.0)}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
        ck.checkpoint(first, step=1).wait(timeout=200)
        with pytest.raises(deeppart.UnsupportedLeafError):
            ck.checkpoint({**second, "b": object()}, step=2)
        with pytest.raises(deeppart.StepExistsError):
            ck.checkpoint(second, step=1)
        ck.checkpoint(second, step=2).wait(timeout=200)
    assert torch.equal(deeppart.load(tmp_path, step=2)["a"], second["a"])


def test_nothing_of_the_state_is_kept_alive_between_checkpoints(tmp_path: Path) -> None:
    import gc
    import weakref

    state = {"w": torch.ones(100_000)}
    watch = weakref.ref(state["w"])
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
        ck.checkpoint(state, step=1).wait(timeout=200)
        del state
        gc.collect()
        assert watch() is None


def size(state: Any, tmp_path: Path) -> ShareSize:
    return size_share(SingleComm(), deeppart.Config(persistent_dir=str(tmp_path)), state)


def test_it_is_the_size_of_the_first_checkpoints_share(tmp_path: Path) -> None:
    weights = torch.arange(300_000, dtype=torch.float32)
    state = {"w": weights, "tied": weights[:1000], "b": torch.ones(7, dtype=torch.int8), "n": 3}
    found = size(state, tmp_path)
    assert found == ShareSize(4 * 300_000 + 7, pinned=False, leaves=3)
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as ck:
        pending = ck.checkpoint(state, 1)
        pending.wait(timeout=200)
        assert pending.report.raw_bytes == found.nbytes


def test_nothing_of_the_state_is_kept(tmp_path: Path) -> None:
    state = {"w": torch.ones(100_000)}
    watch = weakref.ref(state["w"])
    size(state, tmp_path)
    del state
    gc.collect()
    assert watch() is None


def told(calls: list[str]) -> list[str]:
    """What each rank is told."""

    def tell(comm: Comm) -> str:
        with pytest.raises(RanksDisagreeError) as caught:
            raise_disagreement(comm, calls[comm.rank], LIMIT_S)
        assert caught.value.where == f"rank {comm.rank}" and caught.value.summary.startswith(calls[comm.rank])
        return str(caught.value.found)

    with world(len(calls)) as comms:
        return on_all(len(calls), lambda rank: tell(comms[rank]))


def test_every_rank_is_told_what_each_has_called() -> None:
    found = told(["checkpoint(step=1)", "restore(step=None)"])
    assert found == ["rank 0: checkpoint(step=1), rank 1: restore(step=None)"] * 2
    assert told(["prepare()"] * 2)[0].endswith("not the same number of calls, or not all with `force`")


def test_of_many_ranks_eight_are_named() -> None:
    (found, *_) = told([f"checkpoint(step={rank})" for rank in range(10)])
    assert found.endswith("rank 7: checkpoint(step=7) ...")
