"""What a restore that is refused leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.model import RestoreReport


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def mapped_below(directory: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(f"{directory}/")


@pytest.mark.usefixtures("no_collection")
def test_the_parts_go_even_if_the_error_is_kept(memory: Path) -> None:
    config = deeppart.Config(persistent_dir=str(memory), compression="none")
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


def test_all_of_it_in_numbers_that_can_be_counted(tmp_path: Path) -> None:
    saved = {"a": torch.ones(2), "b": {"w": torch.ones(3), "n": 1, "old": torch.ones(1)}, "c": [1, 2], "gone": 5}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restored is None
        ck.checkpoint(saved, 7).wait(timeout=30)
        live = {"a": torch.zeros(2).half(), "net": {"w": torch.zeros(3), "n": 0, "new": torch.zeros(1)}, "c": [0, 0]}
        ck.restore(live, strict=False, cast=True, rename={"b": "net"})
        assert ck.restored == RestoreReport(
            7,
            leaves=2,
            values=3,
            missing=("net/new",),
            unexpected=("net/old", "gone"),
            cast={"a": ("float32", "float16")},
            renamed={"b": "net"},
            loaded_bytes=24,
            saved_bytes=24,
        )
        assert str(ck.restored).splitlines() == [
            "step 7: 2 leaves and 3 values restored",
            "  missing in the checkpoint: net/new",
            "  missing in the live state: net/old, gone",
            "  converted: a (float32 to float16)",
            "  renamed: b to net",
        ]
