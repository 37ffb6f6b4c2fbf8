"""Chunks are encoded ahead, in order, in memory that is used again."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.codec import AutoCompression, Chooser, EncodedChunk
from deeppart.save import Chunk, Encoders
from tests.unit.save.parts import RANDOM

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def chunks_of(count: int, elements: int = 20_000) -> list[Chunk]:
    return [
        Chunk(RANDOM.standard_normal(elements + i).astype(np.float32).data.cast("B"), "float32") for i in range(count)
    ]


def test_when_given_up_no_thread_reads_the_memory_any_more() -> None:
    started, go_on = threading.Semaphore(0), threading.Event()

    class Slow(Chooser):
        def encode_chunk(self, raw: memoryview, dtype: str = "", room: memoryview | None = None) -> EncodedChunk:
            started.release()
            assert go_on.wait(20)
            return super().encode_chunk(raw, dtype, room)

    encoders = Encoders(2)
    run = encoders.run(chunks_of(8), Slow("tensor"))
    ended = threading.Event()

    def give_up() -> None:
        with closing(run):
            threading.Timer(0.2, go_on.set).start()
            next(run)
        assert go_on.is_set()
        ended.set()

    thread = threading.Thread(target=give_up)
    thread.start()
    assert started.acquire(timeout=20)
    thread.join(20)
    assert ended.is_set()


def test_slow_storage_gets_encoded_parts_and_fast_storage_raw_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that 10 MB/s go to the persistent level, 100 GB/s to the local one, and that 100 MB/s are encoded."""
    stored, tried, encoded = AutoCompression.note_stored, AutoCompression.note_tried, AutoCompression.note_encoded
    completed, rate = AutoCompression.note_completed, {"local": 1e11, "persistent": 1e7}
    noted: dict[str, Any] = {
        "note_stored": lambda auto, level, nbytes, _: stored(auto, level, nbytes, nbytes / rate[level]),
        "note_tried": lambda auto, dtype, raw, nbytes, _: tried(auto, dtype, raw, nbytes, raw / 1e8),
        "note_encoded": lambda auto, dtype, raw, nbytes, _: encoded(auto, dtype, raw, nbytes, raw / 1e8),
        "note_completed": lambda auto, level, raw, _, encoded: completed(
            auto, level, raw, raw / rate[level] * (0.9 if encoded else 1.0), encoded=encoded
        ),
    }
    for name, note in noted.items():
        monkeypatch.setattr(AutoCompression, name, note)
    state: dict[str, Any] = {"w": torch.randn(2_500_000), "step": 0}
    config = deeppart.Config(
        persistent_dir=str(tmp_path / "ckpt"),
        local_dir=str(tmp_path / "local"),
        flush_bandwidth=10e6,
        keep={"local": 2},
    )
    reports = []
    with deeppart.Checkpointer(config) as checkpointer:
        for step in range(4):
            state["step"] = step
            state["w"] += 1.0
            pending = checkpointer.checkpoint(state, step)
            pending.wait("persistent")
            pending.wait("local")
            reports.append(pending.report)
        assert checkpointer.failures == 0
    assert all(each.levels["persistent"].nbytes > 10_000_000 for each in reports[:2])  # too little was known
    for report in reports[2:]:
        assert report.levels["persistent"].nbytes < 8_500_000 < report.levels["local"].nbytes
        assert "float32: tensor: encodes" in report.compression["persistent"][0]
        assert "later" in report.compression["local"][0] and "raw" in report.compression["local"][0]
    # Both are the same checkpoint: a restore may take either, and a lost node's part does not change that.
    for lost in (False, True):
        if lost:
            for path in (tmp_path / "local").rglob("part-*"):
                path.unlink()
        live: dict[str, Any] = {"w": torch.zeros(2_500_000), "step": -1}
        with deeppart.Checkpointer(config) as checkpointer:
            assert checkpointer.restore(live) == 3
            assert ("persistent" in checkpointer.explanation[-1]) == lost
        assert torch.equal(live["w"], state["w"]) and live["step"] == 3
