"""Repairs: what is called repaired is sound afterwards, as what its place requires."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deeppart.offline.inspect import repairing
from tests.unit.cli_support import call, call_json, save_incrementally, step_dir

PART = "part-00000-of-00001.dpp"


def base_of(directory: Path) -> Path:
    (base,) = directory.glob("base-*")
    return base


def test_the_part_of_another_step_in_the_place_of_one_that_lacks_its_base(tmp_path: Path) -> None:
    """With its base beside it, it would be sound; and still not what the place requires."""
    root, local = tmp_path / "p", tmp_path / "l"
    save_incrementally(root, local)
    two, three = step_dir(root, 2), step_dir(root, 3)
    sound = (three / PART).read_bytes()
    shutil.copy(two / PART, three / PART)
    base_of(three).unlink()
    assert call_json("verify", root, "--local", local, "--repair")["good"]
    assert (three / PART).read_bytes() == sound and base_of(three).is_file()
    assert call_json("verify", root, "--all", "--local", local)["good"]


def test_without_a_sound_copy_it_is_not_called_repaired(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save_incrementally(root, local)
    two, three = step_dir(root, 2), step_dir(root, 3)
    shutil.copy(two / PART, three / PART)
    base_of(three).unlink()
    (repair,) = call_json("verify", root, "--repair", code=1)["repairs"]
    assert not repair["repaired"] and "no sound copy of part 0" in repair["problem"]


@pytest.mark.parametrize("files", ["rank", "node"])
def test_a_base_on_a_node_that_is_another_sound_file(tmp_path: Path, files: str) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local, files=files)
    three = step_dir(node, 3)
    base = base_of(three)
    sound = base.read_bytes()
    base.unlink()
    shutil.copy(step_dir(node, 2) / PART, base)
    document = call_json("verify", root, "--local", local, "--repair")
    assert [each["repaired"] for each in document["repairs"]] == [True] and base.read_bytes() == sound
    assert call_json("verify", root, "--local", local)["good"]


def test_what_is_still_damaged_afterwards_is_not_called_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save_incrementally(root, local)
    path = step_dir(root, 3) / PART
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(repairing.Repairer, "_put", lambda self, path, pieces: None)
    (repair,) = call_json("verify", root, "--local", local, "--repair", code=1)["repairs"]
    assert not repair["repaired"] and "still not sound: the part file is truncated" in repair["problem"]
    assert "not repaired" in call("verify", root, "--local", local, "--repair", code=1)
