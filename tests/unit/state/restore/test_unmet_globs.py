"""Misspelt globs beside others are told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartWarning, StructureMismatchError


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


def test_a_glob_that_covers_nothing_is_told_with_what_is_like_it(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "b": torch.ones(2)}, "optimizer": {"lr": 0.1}, "epoch": 1}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, 1).wait(timeout=30)
        with pytest.warns(DeeppartWarning, match=r"in the checkpoint: optmizer/\* \(perhaps optimizer/\*\)"):
            ck.restore(state, keys=["model/*", "optmizer/*"])
        with pytest.raises(StructureMismatchError, match=r"globs over paths, such as model/\*\n.*modle/\*"):
            ck.restore(state, keys="modle/*")
        with pytest.raises(StructureMismatchError, match=r"expected: globs over paths\n"):
            ck.restore(state, keys="epoch", exclude="epoch")
    with pytest.raises(StructureMismatchError, match=r"such as model/\*\n"):
        deeppart.load(tmp_path, keys="modle/*")


RULES: dict[str, tuple[dict[str, Any], dict[str, str], str | None]] = {
    "without the wrapper's word": ({"module.old.w": 1.0}, {"old.*": "new.*"}, "module.old.*"),
    "as a path": ({"module.old.w": 1.0}, {"model/old.*": "model/new.*"}, "model/module.old.*"),
    "two wrappers": ({"_orig_mod.module.old.w": 1.0}, {"old.w": "new.w"}, "_orig_mod.module.old.w"),
    "a word that was not saved": ({"old.w": 1.0}, {"module.old.*": "module.new.*"}, "old.*"),
    "something else": ({"module.old.w": 1.0}, {"odl.*": "new.*"}, None),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_would_match_with_a_wrappers_word_names_it(tmp_path: Path, name: str) -> None:
    names, rename, meant = RULES[name]
    live = {"model": {"new.w": torch.zeros(1)}}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint({"model": {key: torch.full((1,), value) for key, value in names.items()}}, 1).wait(timeout=30)
        with pytest.raises(StructureMismatchError, match="a rule of rename matches nothing") as caught:
            ck.restore(live, rename=rename)
        assert ("`deeppart show DIR` lists the names" in str(caught.value)) == (meant is None)
        if meant is not None:
            assert f"write {meant!r}" in str(caught.value) and repr(next(iter(names))) in str(caught.value)
            (target,) = rename.values()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeeppartWarning)
                ck.restore(live, rename={meant: target})
            assert live["model"]["new.w"].tolist() == [1.0]
