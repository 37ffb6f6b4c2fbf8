"""Lists of steps: cheap, and short in words."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import deeppart
from tests.golden import forge as by_hand
from tests.unit.cli_support import call, call_json, flip, forge, make_state, manifest_path, part_path, save, step_dir


def test_local_parts(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 1, 2, local_dir=local)
    steps = call_json("ls", root, "--local", local)["steps"]
    for step in steps:
        assert [place["level"] for place in step["places"]] == ["persistent", "local"]
    assert "local, persistent  complete" in call("ls", root, "--local", local)
    part_path(root, 2).unlink()
    assert call_json("ls", root)["steps"][1]["state"] == "damaged"
    step = call_json("ls", root, "--local", local)["steps"][1]
    assert (step["state"], step["is_restorable"]) == ("recoverable", True)
    assert step["reasons"] == ["part 0 is missing"]


def test_local_only_and_unfinished(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 1, 2, local_dir=local)
    manifest_path(root, 1).unlink()  # as if the job had been killed while it flushed
    for file in step_dir(root, 2).iterdir():
        file.unlink()
    step_dir(root, 2).rmdir()
    first, second = call_json("ls", root, "--local", local)["steps"]
    assert (first["state"], second["state"]) == ("recoverable", "recoverable")
    assert second["reasons"] == ["not on the persistent level"]
    assert [place["level"] for place in second["places"]] == ["local"]
    assert second["nbytes"] > 0 and second["created"] is None
    config = deeppart.Config(persistent_dir=str(root), local_dir=str(local))
    with deeppart.Checkpointer(config) as checkpointer:
        assert checkpointer.restore(make_state(0.0)) == 2  # recoverable indeed


def test_parts_of_another_attempt_do_not_count(tmp_path: Path) -> None:
    """Two jobs made step 5; the second's persistent part is lost, and the first's local one is no replacement."""
    root, other, local = tmp_path / "ckpt", tmp_path / "other", tmp_path / "local"
    save(root, 1)
    save(root, 5)
    save(other, 5, local_dir=local)
    lineage = call_json("ls", root)["lineage"]
    (local / call_json("ls", other)["lineage"]).rename(local / lineage)
    part_path(root, 5).unlink()
    listing = call_json("ls", root, "--local", local)
    steps = [step for step in listing["steps"] if step["step"] == 5]
    assert [step["state"] for step in steps] == ["damaged"] and steps[0]["places"] == []
    assert "of step 5 of another lineage" in listing["problems"][0]


def test_a_local_part_that_the_manifest_does_not_name_does_not_count(tmp_path: Path) -> None:
    """The same attempt and rank, but another index: not the bytes that were committed."""
    root, other = tmp_path / "ckpt", tmp_path / "other"
    forge(root, 1)
    (root / "deeppart.json").write_text(json.dumps({"lineage": "ab" * 16}))
    forge(other, 1, spans=lambda spans: spans[1].append((1, 0, 8)))
    other.rename(tmp_path / ("ab" * 16))
    part_path(root, 1, 1, 3).unlink()
    (step,) = call_json("ls", root, "--local", tmp_path, code=1)["steps"]
    assert step["state"] == "damaged"
    assert [(place["level"], place["parts"]) for place in step["places"]] == [("persistent", [0, 2]), ("local", [0, 2])]
    assert step["reasons"] == ["part 1 is missing", "found nowhere: part 1"]


def test_local_directories_that_do_not_belong(tmp_path: Path) -> None:
    root, other, local = tmp_path / "ckpt", tmp_path / "other", tmp_path / "local"
    save(root, 1)
    save(other, 1, local_dir=local)
    problems = call_json("ls", root, "--local", local, "--local", tmp_path / "gone")["problems"]
    assert problems[0].endswith("no parts that belong to this checkpoint directory (1 of other directories)")
    assert problems[1].endswith("No such file or directory")
    assert "note: " in call("ls", root, "--local", local)


def test_damaged_local_part_is_passed_over(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 1, local_dir=local)
    (part,) = local.glob("*/step-*/part-*")
    flip(part, 20)
    document = call_json("ls", root, "--local", local)
    assert [place["level"] for place in document["steps"][0]["places"]] == ["persistent"]
    assert "digest of the header" in document["problems"][0]


def test_why_not_complete(tmp_path: Path) -> None:
    for step in range(1, 6):
        forge(tmp_path, step)
    part_path(tmp_path, 1, 1, 3).unlink()
    os.truncate(part_path(tmp_path, 2, 2, 3), 4000)
    manifest_path(tmp_path, 3).unlink()
    flip(manifest_path(tmp_path, 4), 200)
    manifest_path(tmp_path, 5).write_bytes(by_hand.seal({"new": "fields"}, version=8))
    steps = {step["step"]: step for step in call_json("ls", tmp_path, code=1)["steps"]}
    found = {step: (entry["state"], entry["reasons"][0]) for step, entry in steps.items()}
    assert found[1] == ("damaged", "part 1 is missing")
    assert found[2][0] == "damaged" and "the part file is truncated" in found[2][1] and "4000 bytes" in found[2][1]
    assert found[3] == ("unfinished", "no manifest: the checkpoint was not completed")
    assert found[4][0] == "damaged" and "digest of the manifest does not hold" in found[4][1]
    assert found[5][0] == "newer" and "format version 8" in found[5][1]
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
