"""What a restore that is refused leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import deeppart


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def mapped_below(directory: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(f"{directory}/")


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("files", ["rank", "node"])
def test_the_parts_go_even_if_the_error_is_kept(memory: Path, files: str) -> None:
    config = deeppart.Config(persistent_dir=str(memory), compression="none", files=files)
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint({"w": torch.rand(500_000)}, step=1).wait(timeout=200)
    kept = []
    with deeppart.Checkpointer(config) as checkpointer:
        for _ in range(3):
            with pytest.raises(deeppart.StateError) as caught:
                checkpointer.restore({"w": torch.zeros(500_001)})
            kept.append(caught.value)
            assert mapped_below(memory) == 0
        assert checkpointer.restore({"w": torch.zeros(500_000)}) == 1
    assert len(kept) == 3
