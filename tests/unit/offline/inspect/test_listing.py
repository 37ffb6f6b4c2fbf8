"""Lists of steps: cheap, and short in words."""

from __future__ import annotations

import os
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


def test_local_directories_that_do_not_belong(tmp_path: Path) -> None:
    root, other, local = tmp_path / "ckpt", tmp_path / "other", tmp_path / "local"
    save(root, 1)
    save(other, 1, local_dir=local)
    problems = call_json("ls", root, "--local", local, "--local", tmp_path / "gone")["problems"]
    assert problems[0].endswith("no parts that belong to this checkpoint directory (1 of other directories)")
    assert problems[1].endswith("No such file or directory")
    assert "note: " in call("ls", root, "--local", local)


def test_why_not_complete(tmp_path: Path) -> None:
    for step in range(1, 6):
        forge(tmp_path, step)
    part_path(tmp_path, 1, 1, 3).unlink()
    os.truncate(part_path(tmp_path, 2, 2, 3), 4000)
    manifest_path(tmp_path, 3).unlink()
    flip(manifest_path(tmp_path, 4), 200)
    manifest_path(tmp_path, 5).write_bytes(by_hand.seal({"new": "fields"}, version=10))
    steps = {step["step"]: step for step in call_json("ls", tmp_path, code=1)["steps"]}
    found = {step: (entry["state"], entry["reasons"][0]) for step, entry in steps.items()}
    assert found[1] == ("damaged", "part 1 is missing")
    assert found[2][0] == "damaged" and "the part file is truncated" in found[2][1] and "4000 bytes" in found[2][1]
    assert found[3] == ("unfinished", "no manifest: the checkpoint was not completed")
    assert found[4][0] == "damaged" and "digest of the manifest does not hold" in found[4][1]
    assert found[5][0] == "newer" and "format version 10" in found[5][1]
    assert steps[1]["places"][0]["parts"] == [0, 2]
    assert steps[3]["nbytes"] > 0 and steps[3]["raw_bytes"] is None
    text = call("ls", tmp_path, code=1)
    assert "persistent 2/3" in text and "damaged: part 1 is missing" in text and "persistent 3/?" in text
