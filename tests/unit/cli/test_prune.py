"""``deeppart prune``: what is removed, what never is, and who may."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.unit.cli_support import call, call_json, four_steps, invoke, save, step_dir, steps_on_disk


def _steps(keys: list[dict[str, Any]]) -> list[int]:
    return [key["step"] for key in keys]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return four_steps(tmp_path)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--keep", "1"), [40]),
        (("--keep", "3"), [20, 30, 40]),
        (("--keep", "9"), [10, 20, 30, 40]),
        (("--after", "20"), [10, 20]),
        (("--after", "25"), [10, 20]),
        (("--after", "40"), [10, 20, 30, 40]),
        (("--before", "30"), [30, 40]),
        (("--after", "10", "--before", "40"), [10, 40]),
        (("--keep", "3", "--before", "100"), [20, 30, 40]),
        (("--keep", "1", "--before", "20"), [20, 30, 40]),
        (("--incomplete",), [10, 20, 30, 40]),
    ],
)
def test_selections(options: tuple[str, ...], left: list[int], root: Path) -> None:
    dry = call_json("prune", root, *options, "--dry-run")
    assert _steps(dry["kept"]) == left and dry["dry_run"] is True and dry["removed"] == []
    assert steps_on_disk(root) == [10, 20, 30, 40]
    document = call_json("prune", root, *options, "--yes")
    assert steps_on_disk(root) == left
    gone = sorted({10, 20, 30, 40} - set(left))
    assert (document["signatures_checked"], document["problems"]) == (False, [])
    assert (_steps(document["removed"]), _steps(document["kept"]), document["failed"]) == (gone, left, [])
    assert [entry["key"]["step"] for entry in document["remove"]] == gone
    assert all(entry["nbytes"] > 8000 and entry["state"] == "complete" for entry in document["remove"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "say what to remove"),
        (("--keep", "0"), "0 is not in the range"),
        (("--keep", "1", "--after", "10"), "exclude each other"),
        (("--after", "10", "--before", "11"), "no step is newer than 10 and older than 11"),
        (("--after", "30", "--before", "20"), "no step is newer"),
        (("--incomplete", "--local", "x"), "--local goes with"),
    ],
)
def test_usage(options: tuple[str, ...], message: str, root: Path) -> None:
    assert message in call("prune", root, *options, "--yes", code=2)
    assert message in call_json("prune", root, *options, "--yes", code=2)["error"]["summary"]
    assert steps_on_disk(root) == [10, 20, 30, 40]


# --- asking -----------------------------------------------------------------------------------------------------------


def test_nobody_to_ask(root: Path) -> None:
    assert "use --yes or --dry-run" in call("prune", root, "--keep", "1", code=2)
    assert "use --yes or --dry-run" in call_json("prune", root, "--keep", "1", code=2)["error"]["summary"]
    assert steps_on_disk(root) == [10, 20, 30, 40]


def answer(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> Any:
    """Run at what looks like a terminal."""
    monkeypatch.setattr("deeppart.cli.prune._can_ask", lambda: True)
    return invoke("prune", root, "--keep", "1", stdin=text)


def test_asking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in (("n\n", 1), ("\n", 1), ("", 130)):
        result = answer(monkeypatch, root, text)
        assert (result.exit_code, steps_on_disk(root)) == (code, [10, 20, 30, 40])
        assert "Remove 3 steps (" in result.output and str(step_dir(root, 20)) in result.output
    result = answer(monkeypatch, root, "y\n")
    assert (result.exit_code, steps_on_disk(root)) == (0, [40])


def test_changed_while_asking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(*_: object, **__: object) -> bool:
        shutil.rmtree(step_dir(root, 20))
        return True

    monkeypatch.setattr("click.confirm", confirm)
    result = answer(monkeypatch, root, "")
    assert result.exit_code == 2 and "has changed since you were asked" in result.output
    assert steps_on_disk(root) == [10, 30, 40]


# --- running jobs -----------------------------------------------------------------------------------------------------


def test_refused_while_a_job_runs(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 0})
    with deeppart.Checkpointer(config) as checkpointer:
        error = call_json("prune", tmp_path, "--keep", "1", "--yes", code=2)["error"]
        assert error["kind"] == "DirectoryInUseError" and f"process {os.getpid()}" in error["found"]
        assert error["found"].startswith("in use by ") and "nothing is changed" in error["summary"]
        refused = "without --dry-run this would be refused: the directory is in use by "
        assert refused in call("prune", tmp_path, "--keep", "1", "--dry-run")
        assert "refused" not in call("prune", tmp_path, "--keep", "2", "--dry-run"), "there is nothing to remove"
        assert steps_on_disk(tmp_path) == [1, 2]
        checkpointer.checkpoint({"x": 1}, step=3).wait("persistent", timeout=200)
    call("prune", tmp_path, "--keep", "1", "--yes")
    assert steps_on_disk(tmp_path) == [3]


# --- beside steps that anybody may have put there: only signed ones count where any is signed ---


KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def key_file(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path / "key", KEY)


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Path:
    """Signed steps 1 and 2, and an unsigned step 3 that was committed later."""
    save(tmp_path / "ckpt", 1, 2, sign_key_file=str(key))
    save(tmp_path / "ckpt", 3)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("with_key", [False, True])
def test_what_is_not_signed_does_not_count_for_keep_and_stays(with_key: bool, signed: Path, key: Path) -> None:
    options = ["--sign-key-file", key] if with_key else []
    document = call_json("prune", signed, "--keep", "1", "--yes", *options)
    assert (_steps(document["removed"]), _steps(document["kept"])) == ([1], [2, 3])
    assert document["signatures_checked"] is with_key
    (line,) = document["problems"]
    assert line.startswith("step 3 does not count as complete: ") and "not signed" in line
    assert steps_on_disk(signed) == [2, 3]


@pytest.mark.parametrize("with_key", [False, True])
def test_the_last_signed_checkpoint_stays(with_key: bool, signed: Path, key: Path) -> None:
    options = ["--sign-key-file", key] if with_key else []
    error: Any = call_json("prune", signed, "--before", "3", "--yes", *options, code=2)["error"]
    assert (
        "would leave no complete checkpoint that is signed" in error["summary"]
        and "step 3 does not count" in error["found"]
    )
    assert steps_on_disk(signed) == [1, 2, 3]
    assert _steps(call_json("prune", signed, "--after", "2", "--yes", *options)["removed"]) == [3], (
        "by its number it can go"
    )
    assert _steps(call_json("prune", signed, "--before", "2", "--yes", *options)["removed"]) == [1]


def test_a_wrong_key_leaves_nothing_to_lose_and_nothing_is_lost(signed: Path, tmp_path: Path) -> None:
    wrong = ["--sign-key-file", key_file(tmp_path / "other", OTHER)]
    assert _steps(call_json("prune", signed, "--keep", "1", "--yes", *wrong)["removed"]) == []
    error = call_json("prune", signed, "--before", "9", "--yes", *wrong, code=2)["error"]
    assert "steps 1-2 do not count as complete: " in error["found"]
    assert steps_on_disk(signed) == [1, 2, 3]
    assert _steps(call_json("prune", signed, "--before", "9", "--yes", "--allow-empty", *wrong)["removed"]) == [1, 2, 3]
