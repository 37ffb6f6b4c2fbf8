"""What a restore says that it has done."""

from __future__ import annotations

from pathlib import Path

import torch

import deeppart
from deeppart.model.reports import RestoreReport


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


def test_none_where_there_was_nothing(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restore({"a": 1}) is None and ck.restored is None


def test_long_lists_are_cut_for_people() -> None:
    report = RestoreReport(1, 1, 1, missing=tuple(f"m{number}" for number in range(99)))
    assert "m7 ... (99 in all)" in str(report) and "m8" not in str(report)
    assert str(report).startswith("step 1: 1 leaf and 1 value restored")
