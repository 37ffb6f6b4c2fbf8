"""``deeppart prune`` beside steps that anybody may have put there: only signed ones count where any is signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_support import call_json, save, steps_in

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def _steps(keys: list[dict[str, Any]]) -> list[int]:
    return [key["step"] for key in keys]


def key_file(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path / "key", KEY)


@pytest.fixture
def root(tmp_path: Path, key: Path) -> Path:
    """Signed steps 1 and 2, and an unsigned step 3 that was committed later."""
    save(tmp_path / "ckpt", 1, 2, sign_key_file=str(key))
    save(tmp_path / "ckpt", 3)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("with_key", [False, True])
def test_what_is_not_signed_does_not_count_for_keep_and_stays(with_key: bool, root: Path, key: Path) -> None:
    options = ["--sign-key-file", key] if with_key else []
    document = call_json("prune", root, "--keep", "1", "--yes", *options)
    assert (_steps(document["removed"]), _steps(document["kept"])) == ([1], [2, 3])
    assert document["signatures_checked"] is with_key
    (line,) = document["problems"]
    assert line.startswith("step 3 does not count as complete: ") and "not signed" in line
    assert steps_in(root) == [2, 3]


@pytest.mark.parametrize("with_key", [False, True])
def test_the_last_signed_checkpoint_stays(with_key: bool, root: Path, key: Path) -> None:
    options = ["--sign-key-file", key] if with_key else []
    error: Any = call_json("prune", root, "--before", "3", "--yes", *options, code=2)["error"]
    assert (
        "would leave no complete checkpoint that is signed" in error["summary"]
        and "step 3 does not count" in error["found"]
    )
    assert steps_in(root) == [1, 2, 3]
    assert _steps(call_json("prune", root, "--after", "2", "--yes", *options)["removed"]) == [3], (
        "by its number it can go"
    )
    assert _steps(call_json("prune", root, "--before", "2", "--yes", *options)["removed"]) == [1]


def test_a_wrong_key_leaves_nothing_to_lose_and_nothing_is_lost(root: Path, tmp_path: Path) -> None:
    wrong = ["--sign-key-file", key_file(tmp_path / "other", OTHER)]
    assert _steps(call_json("prune", root, "--keep", "1", "--yes", *wrong)["removed"]) == []
    error = call_json("prune", root, "--before", "9", "--yes", *wrong, code=2)["error"]
    assert "steps 1-2 do not count as complete: " in error["found"]
    assert steps_in(root) == [1, 2, 3]
    assert _steps(call_json("prune", root, "--before", "9", "--yes", "--allow-empty", *wrong)["removed"]) == [1, 2, 3]
