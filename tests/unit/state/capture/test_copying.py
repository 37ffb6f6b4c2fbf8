"""Capture: what is saved is what was there when ``checkpoint()`` was called; and the staging memory that it lies in."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.capture.staging import Staging
from tests.states import difference
from tests.unit.cli_support import steps_in


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "local"), "timeout": 60.0, "keep": {"persistent": 0}}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **defaults | settings)


def pattern(step: int) -> dict[str, Any]:
    """A state of several chunks whose every byte depends on the step."""
    big = torch.full((3_000_000,), step, dtype=torch.int32)  # three chunks of 4 MiB, cut alone
    return {
        "big": big,
        "strided": torch.full((500, 400), step * 3, dtype=torch.int64).T,
        "numpy": np.full((300, 500), step * 5, dtype="f8")[:, ::2],
        "many": [torch.full((i % 7,), step + i, dtype=torch.int16) for i in range(300)],
        "values": [step, float(step), str(step), {"n": bytes([step % 256])}],
    }


def fill(state: dict[str, Any], source: dict[str, Any]) -> None:
    """Overwrite everything in place."""
    for name in ("big", "strided"):
        state[name].copy_(source[name])
    np.copyto(state["numpy"], source["numpy"])
    for mine, theirs in zip(state["many"], source["many"], strict=True):
        mine.copy_(theirs)
    state["values"][:] = source["values"]


def test_what_changes_after_checkpoint_returns_is_not_saved(memory: Path) -> None:
    """Under load: other threads keep both cores busy, the state changes at once, checkpoints overlap."""
    stop = threading.Event()

    def burn() -> None:
        block = torch.zeros(1 << 20)
        while not stop.is_set():
            block.add_(1.0)

    burners = [threading.Thread(target=burn) for _ in range(2)]
    for thread in burners:
        thread.start()
    noise = pattern(0xAA)
    state = pattern(0)
    pendings = []
    try:
        with deeppart.Checkpointer(config(memory)) as ck:
            for step in range(1, 9):
                fill(state, pattern(step))
                pendings.append(ck.checkpoint(state, step))
                fill(state, noise)  # at once
    finally:
        stop.set()
        for thread in burners:
            thread.join()
    for step, pending in enumerate(pendings, start=1):
        assert pending.report.levels["persistent"].state == "done"
        assert difference(pattern(step), deeppart.load(memory / "ckpt", step)) is None, f"step {step}"


def test_staging_memory_is_reused_and_follows_the_share(memory: Path) -> None:
    sizes = []
    with deeppart.Checkpointer(config(memory)) as ck:
        for step, count in enumerate([1000, 1000, 500, 0, 3_000_000, 10, 2_999_999, 3_000_001, 1]):
            state = {"a": torch.arange(count), "b": torch.ones(count % 13)}
            ck.checkpoint(state, step).wait(timeout=200)
            sizes.append(ck._background.staging.nbytes)
            assert difference(state, deeppart.load(memory / "ckpt", step)) is None
    assert sizes[:4] == [sizes[0]] * 4 and sizes[4:7] == [sizes[4]] * 3
    assert sizes[7] == sizes[8] == 3_000_001 * 8 + 3_000_001 % 13 * 4
    assert ck._background.staging.nbytes == 0, "given back by close"


def test_staging_never_holds_two_buffers() -> None:
    staging = Staging()
    first = weakref.ref(staging.reserve(1 << 20).untyped_storage())
    assert staging.reserve(1 << 19).data_ptr() == staging.reserve(1 << 20).data_ptr()
    assert staging.reserve(1000).numel() == 1000
    staging.reserve(1 << 21)
    gc.collect()
    assert first() is None
    staging.release()
    assert staging.nbytes == 0


def test_no_memory_for_the_share_fails_that_checkpoint_alone(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deeppart.Checkpointer(config(memory, timeout=5.0)) as ck:
        for step, error in enumerate((MemoryError("none left"), RuntimeError("torch says no"), ValueError("odd"))):

            def refuse(*args: Any, error: Exception = error, **kwargs: Any) -> Any:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(ck._background.staging, "reserve", refuse)
                pending = ck.checkpoint({"a": torch.ones(3)}, step=10 * step)
            with pytest.raises(deeppart.errors.CheckpointError, match=str(error)):
                pending.wait("local", timeout=200)
            with pytest.raises(deeppart.errors.CheckpointError, match=str(error)):
                pending.wait("persistent", timeout=200)
            ck.checkpoint({"a": torch.ones(3)}, step=10 * step + 1).wait(timeout=200)
        assert sorted(steps_in(memory / "ckpt")) == [1, 11, 21]
