"""Step directories: which are whole, and why the others are not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.golden import forge as by_hand
from tests.unit.cli_support import call, call_json, flip, forge, manifest_path, part_path, save


def test_why_not_complete(tmp_path: Path) -> None:
    for step in range(1, 6):
        forge(tmp_path, step)
    part_path(tmp_path, 1, 1, 3).unlink()
    os.truncate(part_path(tmp_path, 2, 2, 3), 4000)
    manifest_path(tmp_path, 3).unlink()
    flip(manifest_path(tmp_path, 4), 200)
    manifest_path(tmp_path, 5).write_bytes(by_hand.seal({"new": "fields"}, version=5))
    steps = {step["step"]: step for step in call_json("ls", tmp_path, code=1)["steps"]}
    found = {step: (entry["state"], entry["reasons"][0]) for step, entry in steps.items()}
    length = part_path(tmp_path, 1, 2, 3).stat().st_size
    assert found[1] == ("damaged", "part 1 is missing")
    assert found[2] == ("damaged", f"part 2 has 4000 bytes instead of {length}")
    assert found[3] == ("unfinished", "no manifest: the checkpoint was not completed")
    assert found[4][0] == "damaged" and "digest of the manifest does not hold" in found[4][1]
    assert found[5][0] == "newer" and "format version 5" in found[5][1]
    assert steps[1]["places"][0]["parts"] == [0, 2]
    assert steps[3]["nbytes"] > 0 and steps[3]["raw_bytes"] is None
    text = call("ls", tmp_path, code=1)
    assert "persistent 2/3" in text and "damaged: part 1 is missing" in text and "persistent 3/?" in text


def test_parts_that_were_swapped(tmp_path: Path) -> None:
    """Of the right length and whole, but not the ones that were committed: of another step, and of another rank."""
    for step in range(1, 4):
        forge(tmp_path, step)
    shutil.copyfile(part_path(tmp_path, 1, 1, 3), part_path(tmp_path, 2, 1, 3))
    one, other = part_path(tmp_path, 3, 1, 3), part_path(tmp_path, 3, 2, 3)
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    steps = {step["step"]: step for step in call_json("ls", tmp_path)["steps"]}
    assert [steps[step]["state"] for step in (1, 2, 3)] == ["complete", "damaged", "damaged"]
    assert [step["is_restorable"] for step in steps.values()] == [True, False, False]
    assert "part 1" in steps[2]["reasons"][0] and "part 1" in steps[3]["reasons"][0]


def test_strange_things_in_the_directory(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-7").mkdir()  # not a name this library gives
    (tmp_path / f"step-000000000002-{'a' * 32}-000000").write_text("a file named like a step")
    forge(tmp_path, 3, 1)
    part = part_path(tmp_path, 3)
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    steps = call_json("ls", tmp_path)["steps"]
    assert [(step["step"], step["state"]) for step in steps] == [(1, "complete"), (2, "damaged"), (3, "damaged")]
    assert steps[2]["reasons"] == ["part 0 is not a regular file"]
