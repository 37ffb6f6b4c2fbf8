"""What is derived from a state's structure stays right when a call comes to nothing in between."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

import deeppart


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
        with pytest.raises(deeppart.errors.UnsupportedLeafError):
            ck.checkpoint({**second, "b": object()}, step=2)
        with pytest.raises(deeppart.errors.StepExistsError):
            ck.checkpoint(second, step=1)
        ck.checkpoint(second, step=2).wait(timeout=200)
    assert torch.equal(deeppart.load(tmp_path, step=2)["a"], second["a"])


def test_nothing_of_the_state_is_kept_alive_between_checkpoints(tmp_path: Path) -> None:

    state = {"w": torch.ones(100_000)}
    watch = weakref.ref(state["w"])
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
        ck.checkpoint(state, step=1).wait(timeout=200)
        del state
        gc.collect()
        assert watch() is None
