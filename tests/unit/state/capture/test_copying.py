"""Capture: what is saved is what was there when ``checkpoint()`` was called; and the staging memory that it lies in."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.capture import staging as module
from deeppart.state.capture.staging import TOUCH_BYTES, Staging, staging_bytes
from deeppart.testing.states import Box, difference
from tests.unit.cli_support import steps_in
from tests.unit.smaps import smaps_bytes


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


def test_values_and_containers_may_change_at_once_too(memory: Path) -> None:
    state: dict[str, Any] = {"list": [1, [2]], "dict": {"a": 1}, "order": OrderedDict(a=1, b=2), "box": Box([1])}
    with deeppart.Checkpointer(config(memory)) as ck:
        for step in range(2):  # the second time from the template
            state.update(list=[1, [2]], dict={"a": 1}, order=OrderedDict(a=1, b=2), box=Box([1]))
            ck.checkpoint(state, step)
            state["list"][1].append(3)
            state["list"].append(4)
            state["dict"].clear()
            state["order"].move_to_end("a")
            state["box"].content[0] = 99
    expected = {"list": [1, [2]], "dict": {"a": 1}, "order": OrderedDict(a=1, b=2), "box": [1]}
    for step in range(2):
        assert difference(expected, deeppart.load(memory / "ckpt", step)) is None


def test_staging_memory_is_reused_and_follows_the_share(memory: Path) -> None:
    sizes = []
    with deeppart.Checkpointer(config(memory)) as ck:
        for step, count in enumerate([1000, 1000, 500, 0, 3_000_000, 10, 2_999_999, 3_000_001, 1]):
            state = {"a": torch.arange(count), "b": torch.ones(count % 13)}
            ck.checkpoint(state, step).wait(timeout=200)
            sizes.append(ck._staging.nbytes)
            assert difference(state, deeppart.load(memory / "ckpt", step)) is None
    assert sizes[:4] == [sizes[0]] * 4 and sizes[4:7] == [sizes[4]] * 3
    assert sizes[7] == sizes[8] == 3_000_001 * 8 + 3_000_001 % 13 * 4
    assert ck._staging.nbytes == 0, "given back by close"


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
                patch.setattr(ck._staging, "reserve", refuse)
                pending = ck.checkpoint({"a": torch.ones(3)}, step=10 * step)
            with pytest.raises(deeppart.errors.CheckpointError, match=str(error)):
                pending.wait("local", timeout=200)
            with pytest.raises(deeppart.errors.CheckpointError, match=str(error)):
                pending.wait("persistent", timeout=200)
            ck.checkpoint({"a": torch.ones(3)}, step=10 * step + 1).wait(timeout=200)
        assert sorted(steps_in(memory / "ckpt")) == [1, 11, 21]


def test_nothing_of_the_state_is_kept_alive(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        for step in range(3):
            state = {"t": torch.ones(3), "n": np.ones(3), "b": Box({"x": torch.ones(2)})}
            watched = [weakref.ref(item) for item in (state["t"], state["n"], state["b"])]
            ck.checkpoint(state, step).wait(timeout=200)
            with pytest.raises(deeppart.errors.StepExistsError):
                ck.checkpoint(state, step)
            with pytest.raises(deeppart.errors.UnsupportedLeafError):
                ck.checkpoint({**state, "bad": object()}, step=100)
            sys.exc_info()
            del state
            gc.collect()
            assert [ref() for ref in watched] == [None] * 3, step


def test_touching_takes_all_pages_and_changes_no_byte() -> None:
    staging = Staging()
    memory = staging.reserve(3 * TOUCH_BYTES + 12_345)
    staging_bytes(memory)[TOUCH_BYTES : TOUCH_BYTES + 5] = 7  # as if a share were being copied already
    before = smaps_bytes(memory.data_ptr(), "Rss")
    touched = staging.populate(lambda: True)
    if not touched:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert touched >= memory.numel() - 4096 and before < memory.numel() / 2
    assert smaps_bytes(memory.data_ptr(), "Rss") >= memory.numel() // 4096 * 4096
    assert np.flatnonzero(staging_bytes(memory)).tolist() == list(range(TOUCH_BYTES, TOUCH_BYTES + 5))


def test_touching_stops_when_it_is_told_to_and_outlives_a_release() -> None:
    staging = Staging()
    staging.reserve(8 * TOUCH_BYTES)
    asked = 0

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            staging.release()  # whoever touches holds the memory: nothing else can have come to its place
            staging.reserve(1 << 20)
        return asked < 4

    assert staging.populate(is_wanted) in (0, 3 * TOUCH_BYTES)
    assert Staging().populate(lambda: True) == 0


def test_a_kernel_that_cannot_leaves_it_to_the_first_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_madvise", lambda *arguments: -1)
    staging = Staging()
    staging.reserve(2 * TOUCH_BYTES)
    assert staging.populate(lambda: True) == 0


def test_other_threads_run_while_pages_are_touched() -> None:
    """It would be no background if it held the interpreter."""
    staging = Staging()
    staging.reserve(8 * TOUCH_BYTES)
    counted, done = 0, threading.Event()

    def touch() -> None:
        staging.populate(lambda: True)
        done.set()

    thread = threading.Thread(target=touch)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 100
