"""Misspelt globs beside others are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartWarning


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"keys": ["model/*", "optmizer/*"]}, "optmizer/"),
        ({"keys": "model/*", "exclude": ["modle/0.weight", "epoch"]}, "modle/0.weight"),
        ({"exclude": "head/*"}, "head/"),
    ],
)
def test_a_glob_that_covers_nothing_is_told(tmp_path: Path, how: dict[str, Any], named: str) -> None:
    state = {"model": torch.nn.Sequential(torch.nn.Linear(2, 2)), "epoch": 1}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, 1).wait(timeout=30)
        with pytest.warns(DeeppartWarning, match=f"cover nothing here or in the checkpoint: {named}"):
            ck.restore(state, **how)


def test_what_only_one_side_has_counts(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint({"model": {"w": torch.ones(2), "old": 1}, "list": [{"x": 1}]}, 1).wait(timeout=30)
        live: Any = {"model": {"w": torch.zeros(2), "new": 1}, "list": [{"x": 0}]}
        ck.restore(live, exclude=["model/new", "model/old", "list/0/x", "*/w"])
        assert not live["model"]["w"].any()
