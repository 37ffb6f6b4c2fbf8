"""``deeppart diff``: arguments and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.test_prune_signed import KEY, OTHER, key_file
from tests.unit.cli_support import call, call_json, flip, invoke, manifest_path, part_path, save


def test_exit_codes_are_those_of_diff(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 1, 2)
    save(b, 1)
    call("diff", a, a, code=0)
    call("diff", f"{a}@1", f"{a}@2", code=1)
    call("diff", f"{a}@1", b, code=0)
    call("diff", a, code=2)
    for wrong in (["--rtol", "-1"], ["--atol", "nan"], ["--atol", "inf"], ["--rank", "-1"], ["--bad"]):
        assert call_json("diff", a, b, *wrong, code=2)["error"]["kind"] == "UsageError"
    for there in (f"{a}@9", tmp_path / "nowhere", f"{tmp_path / 'nowhere'}@1"):
        error = call_json("diff", a, there, code=2)["error"]
        assert (error["kind"], error["exit_code"]) == ("RestoreError", 2)
    assert call_json("diff", a, manifest_path(a, 1), code=2)["error"]["kind"] == "StorageError"
    assert call_json("diff", a, b, "nothing*", code=2)["error"]["kind"] == "StructureMismatchError"
    assert call_json("diff", a, b, "--rank", 1, code=2)["error"]["kind"] == "RestoreError"


def test_damage_has_another_exit_code_than_a_difference(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 1)
    save(b, 1, 2)
    flip(part_path(b, 1), 4096 + 1000)
    text = call("diff", a, f"{b}@1", code=2)
    assert "B: " in text and "digest of a chunk" in text and "no difference was found in what can be" in text
    assert call_json("diff", a, f"{b}@1", code=2)["equal"] is None
    flip(part_path(b, 2), 4096 + 1000)
    assert call_json("diff", a, f"{b}@2", code=2)["equal"] is False
    flip(manifest_path(b, 2), 300)
    result = invoke("diff", a, f"{b}@2")
    assert (result.exit_code, result.stdout) == (2, "") and "digest of the manifest" in result.stderr
    # The newest with a sound manifest is taken, and that this is not the newest is said.
    assert "step 2 is newer, and cannot be used" in call("diff", a, b, code=2)


@pytest.mark.parametrize("name", ["x@1", "@", "x@1@2"])
def test_a_directory_of_just_that_name_is_meant(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    save(root, 1, 3)
    for argument, step in ((root, 3), (f"{root}@1", 1), (f"{root}/@1", 1)):
        assert call_json("diff", argument, root, code=0 if step == 3 else 1)["a"]["step"] == step


def test_signatures(tmp_path: Path) -> None:
    key, other = key_file(tmp_path / "key", KEY), key_file(tmp_path / "other", OTHER)
    save(tmp_path / "a", 1, sign_key_file=str(key))
    save(tmp_path / "b", 1)
    assert "step 1 is signed; its signatures were not checked" in call("diff", tmp_path / "a", tmp_path / "a")
    assert call_json("diff", tmp_path / "a", tmp_path / "a", "--sign-key-file", key)["signatures_checked"]
    for with_key, there in ((other, "a"), (key, "b")):
        text = call("diff", tmp_path / "a", tmp_path / there, "--sign-key-file", with_key, code=2)
        assert "signed" in text
