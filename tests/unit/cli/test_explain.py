"""``deeppart explain`` plans what a restore does: files of the persistent level are looked at, too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import deeppart
from tests.unit.cli_support import call, call_json

KEY = bytes(range(32))


def saved(root: Path, name: str, key: Path | None, **settings: object) -> None:
    config = deeppart.Config(
        persistent_dir=str(root / name),
        sign_key_file=None if key is None else str(key),
        incremental=False,
        **settings,  # type: ignore[arg-type]
    )
    with deeppart.Checkpointer(config) as ck:
        for step in (1, 2):
            ck.checkpoint({"w": torch.full((50_000,), float(step))}, step).wait("persistent", timeout=200)


def part_of(root: Path, name: str) -> Path:
    (part,) = (root / name).glob("step-000000000002-*/part-*")
    return part


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "is missing": lambda part, _: part.unlink(),
    "has 0 bytes": lambda part, _: part.write_bytes(b""),
    "is not as it was written": lambda part, other: shutil.copyfile(other, part),
}


@pytest.mark.parametrize("signed", [False, True], ids=["", "signed"])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_part_that_a_restore_could_not_use(tmp_path: Path, what: str, signed: bool) -> None:
    key = None
    if signed:
        key = tmp_path / "key"
        key.write_bytes(KEY)
        key.chmod(0o600)
    options = [] if key is None else ["--sign-key-file", key]
    saved(tmp_path, "a", key)
    saved(tmp_path, "b", key)
    assert call_json("explain", tmp_path / "a", *options)["step"] == 2
    DAMAGE[what](part_of(tmp_path, "a"), part_of(tmp_path, "b"))
    text = call("explain", tmp_path / "a", *options)
    assert "step 2 cannot be recovered" in text and what in text and "step 1: 1 of 1 parts persistent" in text
    assert "could be recovered too" not in text
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "a"), sign_key_file=key and str(key)) as ck:
        with pytest.warns(deeppart.DeeppartWarning, match="step 2 is in the directory too"):
            assert ck.restore({"w": torch.zeros(50_000)}) == 1
    call("explain", tmp_path / "a", "--step", 2, *options, code=1)
