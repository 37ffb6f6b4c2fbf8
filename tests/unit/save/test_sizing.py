"""The size of a share before anything is saved: as large as the first checkpoint's, and forgotten by then."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import SingleComm
from deeppart.save.sizing import ShareSize, size_share


def size(state: Any, tmp_path: Path) -> ShareSize:
    return size_share(SingleComm(), deeppart.Config(str(tmp_path)), state)


def test_it_is_the_size_of_the_first_checkpoints_share(tmp_path: Path) -> None:
    weights = torch.arange(300_000, dtype=torch.float32)
    state = {"w": weights, "tied": weights[:1000], "b": torch.ones(7, dtype=torch.int8), "n": 3}
    found = size(state, tmp_path)
    assert found == ShareSize(4 * 300_000 + 7, pinned=False, leaves=3)
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as ck:
        pending = ck.checkpoint(state, 1)
        pending.wait(timeout=200)
        assert pending.report.raw_bytes == found.nbytes


def test_a_state_that_cannot_be_saved_is_refused_as_by_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(deeppart.UnsupportedLeafError, match="path s"):
        size({"s": object()}, tmp_path)


def test_nothing_of_the_state_is_kept(tmp_path: Path) -> None:
    state = {"w": torch.ones(100_000)}
    watch = weakref.ref(state["w"])
    size(state, tmp_path)
    del state
    gc.collect()
    assert watch() is None
