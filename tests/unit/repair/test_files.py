"""Repairs: what is called repaired is sound afterwards, as what its place requires; nothing else is written over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deeppart.repair import files, mending
from tests.unit.cli_support import call_json, flip, forge, part_path, save, save_incrementally, step_dir

PART = "part-00000-of-00001.dpp"


def repairs(*arguments: object, code: int = 0) -> dict[str, Any]:
    """By name of the file: where it was repaired from, or why it was not."""
    found = call_json("verify", *arguments, "--repair", code=code)["repairs"]
    return {each["path"].rpartition("/")[2]: each["source"] or each["problem"] for each in found}


def test_the_part_of_another_step_in_the_place_of_one_that_refers(tmp_path: Path) -> None:
    """It is sound, and still not what the place requires; the part on the node is whole, and not that file either."""
    root, local = tmp_path / "p", tmp_path / "l"
    save_incrementally(root, local)
    two, three = part_path(root, 2), part_path(root, 3)
    wrong = two.read_bytes()
    sound = three.read_bytes()
    three.write_bytes(wrong)
    for arguments in ((), ("--local", local)):
        assert "part 0 of step 2" in repairs(root, *arguments, code=1)[PART]
        assert three.read_bytes() == wrong
    three.write_bytes(sound)
    assert call_json("verify", root, "--all", "--local", local)["good"]


@pytest.mark.parametrize(
    ("level", "damage"),
    [
        ("node", "chunk of the part"),
        *(
            ("persistent", what)
            for what in ("chunk of the part", "other part", "chunk of the base", "no base", "other base")
        ),
    ],
)
def test_what_is_still_wrong_afterwards_is_not_called_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, damage: str
) -> None:
    """A repair that writes nothing at all."""
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local)
    steps = root if level == "persistent" else node
    path = part_path(steps, 1 if "base" in damage else 3)
    if damage == "no base":
        path.unlink()
    elif "other" in damage:
        shutil.copy(part_path(steps, 2), path)
    else:
        flip(path, 4_000_000 if "base" in damage else 5000)
    for module in (files, mending):
        monkeypatch.setattr(module.DurableFile, "fill", lambda *_: None)
    found = call_json("verify", root, "--local", local, "--repair", code=1)["repairs"]
    assert found and all(each["problem"] for each in found)


def test_what_an_interrupted_repair_has_left_goes_with_the_next(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    left = step_dir(tmp_path, 1) / ".node-00000-of-00002.dpn.tmp-77-0a1b2c3d"
    other = step_dir(tmp_path, 1) / "notes.txt"
    left.write_bytes(b"half of one")
    other.write_text("mine")
    assert call_json("verify", tmp_path)["good"] and left.exists(), "verify only reads"
    assert call_json("verify", tmp_path, "--repair")["good"]
    assert not left.exists() and other.exists()


# --- files that are not what their names say --------------------------------------------------------------------------


def test_two_files_of_a_step_exchanged_are_named_and_left(tmp_path: Path) -> None:
    """There is no copy of anything."""
    forge(tmp_path, 1, ranks=4)
    one, other, *_ = sorted(step_dir(tmp_path, 1).glob("*.dp*"))
    before = one.read_bytes(), other.read_bytes()
    one.write_bytes(before[1])
    other.write_bytes(before[0])
    found = repairs(tmp_path, code=1)
    assert "is not written over" in found[one.name] and "part 1 of step 1" in found[one.name]
    assert (other.read_bytes(), one.read_bytes()) == before


def test_a_part_in_the_place_of_another_stays_until_it_is_moved(tmp_path: Path) -> None:
    """Though there is a copy of what belongs there; once the place is free, the part is written there."""
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, keep_local=1, incremental=False)
    one, two = part_path(root, 1), part_path(root, 2)
    sound = one.read_bytes(), two.read_bytes()
    os.replace(one, two)
    assert "is not written over" in repairs(root, "--local", local, code=1)[PART]
    assert two.read_bytes() == sound[0]
    os.replace(two, one)
    assert call_json("verify", root, "--local", local, "--repair")["good"]
    assert (one.read_bytes(), two.read_bytes()) == sound
