"""The newest step's manifest is of no use: who gets an older one is told, whatever reads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.extension.export import export
from tests.unit.cli_support import call, call_json, flip, manifest_path, save

KEYS = ("a" * 64, "b" * 64)


def told(read: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
    return [str(each.message) for each in caught if issubclass(each.category, deeppart.DeeppartWarning)]


def test_a_damaged_manifest(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    save(root, 1, 2, 3)
    (root / f"step-000000000009-{'a' * 32}-000000").mkdir()  # never completed: nothing to tell
    assert told(lambda: deeppart.load(root)) == []
    flip(manifest_path(root, 3), 300)
    (line,) = told(lambda: deeppart.load(root))
    assert line.startswith("step 2 is read; step 3 is newer, and cannot be used: ")
    (line,) = told(lambda: export(root, tmp_path / "x.h5"))
    assert "step 3 is newer" in line
    assert told(lambda: deeppart.load(root, step=2)) == [], "it was asked for"
    assert "step 3 is newer" in call("export", root, tmp_path / "y.h5")
    assert "step 3 is newer" in call("show", root)
    (line,) = call_json("show", root)["passed_over"]
    assert "step 3 is newer" in line
    assert call_json("export", root, tmp_path / "z.h5")["remarks"] == [line]
    assert "step 3 (persistent)" in call("explain", root)


def test_a_restore_of_an_older_one(tmp_path: Path) -> None:
    """Also where the newer ones are signed with a key that this job does not have."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for path, key in zip((first, second), KEYS, strict=True):
        path.write_text(key)
        path.chmod(0o600)

    def job(*keys: Path, steps: tuple[int, ...] = ()) -> None:
        where: dict[str, Any] = {"persistent_dir": str(tmp_path / "ckpt"), "sign_key_file": [str(key) for key in keys]}
        with deeppart.Checkpointer(deeppart.Config(timeout=20.0, **where)) as ck:
            restored.append(ck.restore({"x": torch.zeros(10)}))
            for step in steps:
                ck.checkpoint({"x": torch.ones(10)}, step).wait("persistent", 20)

    restored: list[int | None] = []
    assert told(lambda: job(first, steps=(1, 2))) == []
    assert told(lambda: job(second, first, steps=(3, 4))) == []
    (line,) = told(lambda: job(first))
    assert restored == [None, 2, 2]
    told_first = "restored step 2; newer steps in the directory cannot be used as they are: step 3 (the signature"
    assert line.startswith(told_first)
    assert ", step 4 (the signature" in line


@pytest.mark.parametrize("newest", [False, True])
def test_nothing_is_told_where_the_newest_is_restored(tmp_path: Path, newest: bool) -> None:
    save(tmp_path, 1, 2)
    flip(manifest_path(tmp_path, 2 if newest else 1), 300)
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=20.0)) as ck:
        state = deeppart.load(tmp_path, step=1 if newest else 2)
        lines = told(lambda: ck.restore(state))
    assert len(lines) == newest and all("step 2 (" in line for line in lines)
