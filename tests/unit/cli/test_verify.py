"""``deeppart verify``: every kind of damage, at every place, under the names of the leaves it hits."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from tests.unit.cli_support import call, call_json, manifest_path, part_path, save


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sound(compression: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 2, compression=compression)
    document = call_json("verify", tmp_path, "--all")
    assert document.keys() == {
        *("directory", "good", "nodes", "owner", "repairs", "signatures_checked", "steps", "unreadable_suspect_records")
    }
    assert document["good"] is True
    for step in document["steps"]:
        size = part_path(tmp_path, step["step"]).stat().st_size
        assert (step["state"], step["parts"], step["nbytes"], step["damage"]) == ("sound", 1, size, [])
        assert step["raw_bytes"] == 1_280_000 + 4_800_000 + 400 + 28 + 400 + 120
    assert [step["step"] for step in call_json("verify", tmp_path)["steps"]] == [2]
    assert [step["step"] for step in call_json("verify", tmp_path, "--step", 1)["steps"]] == [1]
    text = call("verify", tmp_path)
    assert text.startswith("step 2  sound  1 part, ") and "B/s" in text


def test_usage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert "exclude each other" in call("verify", tmp_path, "--step", 1, "--all", code=2)
    assert "there is no step 9" in call("verify", tmp_path, "--step", 9, code=1)


def test_unfinished_is_no_failure_while_a_job_runs(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    manifest_path(tmp_path, 2).unlink()
    call("verify", tmp_path, "--all", code=1)
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))):
        assert "in use by" in call("verify", tmp_path, "--all")
        assert call_json("verify", tmp_path, "--all")["good"] is True
