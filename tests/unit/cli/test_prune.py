"""``deeppart prune``: what is removed, what never is, and who may."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.ownership import hold_directory, read_owner
from deeppart.offline.inspect.pruning import Selection, plan_prune
from deeppart.storage.lineage import LOCK_NAME
from tests.unit.cli_support import (
    call,
    call_json,
    flip,
    forge,
    invoke,
    make_state,
    manifest_path,
    part_path,
    save,
    step_dir,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Complete steps 10, 20, 30 and 40, committed in this order."""
    for step in (10, 20, 30, 40):
        forge(tmp_path, step, ranks=2)
    return tmp_path


def steps(root: Path) -> list[int]:
    """Steps that have a directory."""
    return sorted(int(path.name.split("-")[1]) for path in root.glob("step-*"))


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
    assert dry["kept"] == left and dry["dry_run"] is True and dry["removed"] == []
    assert steps(root) == [10, 20, 30, 40]
    document = call_json("prune", root, *options, "--yes")
    assert steps(root) == left
    gone = sorted({10, 20, 30, 40} - set(left))
    assert document.keys() == {
        "directory", "dry_run", "owner", "selected", "kept", "removed", "failed", "left_behind", "signatures_checked",
        "problems",
    }  # fmt: skip
    assert (document["signatures_checked"], document["problems"]) == (False, [])
    assert (document["removed"], document["kept"], document["failed"]) == (gone, left, [])
    assert [entry["step"] for entry in document["selected"]] == gone
    assert all(entry["bytes"] > 8000 and entry["state"] == "complete" for entry in document["selected"])


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
    assert steps(root) == [10, 20, 30, 40]


def test_text(root: Path) -> None:
    text = call("prune", root, "--keep", "2", "--dry-run")
    assert str(step_dir(root, 10)) in text and str(step_dir(root, 30)) not in text
    assert "would remove 2 steps (" in text and "steps 30, 40 stay" in text
    assert call("prune", root, "--keep", "2", "--yes").startswith("removed 2 steps (")
    assert call("prune", root, "--keep", "2", "--yes") == "nothing to remove; steps 30, 40 stay\n"
    assert call("prune", root, "--keep", "1", "--yes").endswith("step 40 stays\n")


# --- asking -----------------------------------------------------------------------------------------------------------


def test_nobody_to_ask(root: Path) -> None:
    assert "use --yes or --dry-run" in call("prune", root, "--keep", "1", code=2)
    assert "use --yes or --dry-run" in call_json("prune", root, "--keep", "1", code=2)["error"]["summary"]
    assert steps(root) == [10, 20, 30, 40]


def test_nobody_is_asked_where_there_is_nothing_to_remove(root: Path) -> None:
    assert call("prune", root, "--before", "1") == "nothing to remove; steps 10, 20, 30, 40 stay\n"
    assert call_json("prune", root, "--keep", "4")["selected"] == []
    assert "say what to remove" in call("prune", root, code=2)


def answer(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> Any:
    """Run at what looks like a terminal."""
    monkeypatch.setattr("deeppart.cli.prune._can_ask", lambda: True)
    return invoke("prune", root, "--keep", "1", stdin=text)


def test_asking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in (("n\n", 1), ("\n", 1), ("", 130)):
        result = answer(monkeypatch, root, text)
        assert (result.exit_code, steps(root)) == (code, [10, 20, 30, 40])
        assert "Remove 3 steps (" in result.output and str(step_dir(root, 20)) in result.output
    result = answer(monkeypatch, root, "y\n")
    assert (result.exit_code, steps(root)) == (0, [40])


def test_changed_while_asking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(*_: object, **__: object) -> bool:
        shutil.rmtree(step_dir(root, 20))
        return True

    monkeypatch.setattr("click.confirm", confirm)
    result = answer(monkeypatch, root, "")
    assert result.exit_code == 2 and "has changed since you were asked" in result.output
    assert steps(root) == [10, 30, 40]


# --- what never goes --------------------------------------------------------------------------------------------------


def test_the_last_complete_checkpoint_stays(root: Path) -> None:
    for options in (("--after", "5"), ("--before", "50")):
        text = call("prune", root, *options, "--yes", code=2)
        assert "would remove the last complete checkpoint; nothing was removed" in text
        call("prune", root, *options, "--dry-run", code=2)
    os.truncate(part_path(root, 10, 0, 2), 100)  # what is left would not be complete
    assert "10" not in call_json("prune", root, "--after", "10", "--yes", code=2)["error"]["found"]
    assert steps(root) == [10, 20, 30, 40]
    call("prune", root, "--after", "5", "--yes", "--allow-empty")
    assert steps(root) == []


def test_damaged_steps_do_not_count_as_kept(root: Path) -> None:
    """40 and 20 are damaged: keeping two keeps 30 and 10, and 40, which was committed after them."""
    part_path(root, 40, 1, 2).unlink()
    part_path(root, 20, 1, 2).unlink()
    forge(root, 5)
    flip(manifest_path(root, 5), 200)  # nothing tells when it was committed
    call("prune", root, "--keep", "1", "--yes")
    assert steps(root) == [5, 30, 40]
    call("prune", root, "--before", "30", "--yes")
    assert steps(root) == [30, 40]


def test_damaged_step_between_complete_ones(root: Path) -> None:
    part_path(root, 20, 1, 2).unlink()
    call("prune", root, "--keep", "3", "--yes")
    assert steps(root) == [10, 20, 30, 40]
    call("prune", root, "--keep", "2", "--yes")
    assert steps(root) == [30, 40]


def test_keep_counts_by_time_of_commit(root: Path) -> None:
    forge(root, 25)  # after going back to 20
    call("prune", root, "--keep", "2", "--yes")
    assert steps(root) == [25, 40]


def test_a_step_that_was_committed_again_counts_once(tmp_path: Path) -> None:
    for numbers in ((1, 2, 3), (3,), (3,)):
        with deeppart.Checkpointer(persistent_dir=tmp_path, keep={"persistent": 0}) as checkpointer:
            checkpointer.restore({"x": 0})
            for step in numbers:
                checkpointer.checkpoint({"x": step}, step, force=True).wait(timeout=200)
    newest = max(tmp_path.glob("step-000000000003-*"), key=lambda path: (path / "manifest").stat().st_mtime_ns)
    call("prune", tmp_path, "--keep", "3", "--yes")
    assert steps(tmp_path) == [1, 2, 3]
    assert newest.exists()


def test_incomplete(root: Path) -> None:
    manifest_path(root, 30).unlink()
    manifest_path(root, 40).unlink()
    (step_dir(root, 40) / ".part-00000-of-00002.dpp.tmp-17").write_bytes(b"half")
    part_path(root, 20, 0, 2).unlink()  # committed, if damaged: not this option's business
    document = call_json("prune", root, "--incomplete", "--yes")
    assert [(entry["step"], entry["state"]) for entry in document["selected"]] == [
        (30, "unfinished"),
        (40, "unfinished"),
    ]
    assert steps(root) == [10, 20]


def test_foreign_files_stay(root: Path) -> None:
    note = step_dir(root, 10) / "notes.txt"
    note.write_text("mine")
    document = call_json("prune", root, "--before", "20", "--yes")
    assert document["removed"] == [10] and document["left_behind"] == [str(note.parent)]
    assert [path.name for path in note.parent.iterdir()] == ["notes.txt"]


def test_a_refused_removal_is_told_and_the_rest_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if "step-000000000020" in os.readlink(f"/proc/self/fd/{options['dir_fd']}"):
            raise OSError(errno.EROFS, "Read-only file system")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    document = call_json("prune", root, "--keep", "1", "--yes", code=1)
    assert document["removed"] == [10, 30]
    assert [entry["step"] for entry in document["failed"]] == [20]
    assert "Read-only file system" in document["failed"][0]["reason"]
    assert steps(root) == [20, 40]


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
        assert steps(tmp_path) == [1, 2]
        checkpointer.checkpoint({"x": 1}, step=3).wait("persistent", timeout=200)
    call("prune", tmp_path, "--keep", "1", "--yes")
    assert steps(tmp_path) == [3]


def test_a_job_cannot_start_during_a_prune_and_nothing_recorded_changes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    before, owner = (tmp_path / LOCK_NAME).read_bytes(), read_owner(tmp_path)
    with hold_directory(tmp_path), pytest.raises(deeppart.DirectoryInUseError):
        deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path)))
    assert (tmp_path / LOCK_NAME).read_bytes() == before
    assert read_owner(tmp_path) == owner
    save(tmp_path, 2)


def test_the_instant_in_which_another_command_looks_is_waited_out(root: Path) -> None:
    """`deeppart ls` shares the lock for microseconds; that is no running job."""
    descriptor = os.open(root / LOCK_NAME, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    import threading

    threading.Timer(0.1, os.close, [descriptor]).start()
    call("prune", root, "--keep", "1", "--yes")
    assert steps(root) == [40]


def test_file_systems_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "use --no-lock" in call("prune", root, "--keep", "1", "--yes", code=2)
    assert "would need --no-lock: the directory is perhaps" in call("prune", root, "--keep", "1", "--dry-run")
    assert steps(root) == [10, 20, 30, 40]
    call("prune", root, "--keep", "1", "--yes", "--no-lock")
    assert steps(root) == [40]


def test_no_lock_is_no_way_around_a_job(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))):
        call("prune", tmp_path, "--keep", "1", "--yes", "--no-lock", code=2)


# --- going back -------------------------------------------------------------------------------------------------------


def restore(root: Path, local: Path | None) -> tuple[int | None, Any]:
    state = make_state(0.0)
    config = deeppart.Config(persistent_dir=str(root), local_dir=None if local is None else str(local))
    with deeppart.Checkpointer(config) as checkpointer:
        return checkpointer.restore(state), state


def test_going_back(tmp_path: Path) -> None:
    """Without node-local copies --after is enough; with them, --local is needed too, on every node."""
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 10, 20, 30, local_dir=local)
    call("prune", root, "--after", "10", "--yes")
    assert steps(root) == [10]
    assert restore(root, local)[0] == 30  # from node-local storage
    document = call_json("prune", root, "--after", "10", "--local", local, "--yes", "--json")
    assert [(entry["step"], entry["state"]) for entry in document["selected"]] == [(20, None), (30, None)]
    step, state = restore(root, local)
    assert step == 10
    assert torch.equal(state["moments"][0], make_state(10.0)["moments"][0])


def test_local_copies_go_with_their_steps(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 10, 20, 30, local_dir=local)
    shutil.copytree(local, tmp_path / "other")
    stranger = local / ("0" * 32) / "step-000000000010"
    stranger.mkdir(parents=True)
    call("prune", root, "--keep", "1", "--local", local, "--local", tmp_path / "other", "--yes")
    left = sorted(path.relative_to(tmp_path).parts for path in tmp_path.glob("*/*/step-*"))
    assert [(parts[0], parts[-1].split("-")[1][-2:]) for parts in left] == [
        ("local", "10"),
        ("local", "30"),
        ("other", "30"),
    ]
    assert stranger.is_dir()


def test_local_needs_a_lineage(root: Path, tmp_path: Path) -> None:
    assert "no lineage record" in call("prune", root, "--keep", "1", "--local", tmp_path, "--yes", code=1)
    assert steps(root) == [10, 20, 30, 40]


def test_planning_changes_nothing(root: Path) -> None:
    before = sorted(root.rglob("*"))
    plan = plan_prune(root, Selection(keep=1))
    assert [removal.key.step for removal in plan.remove] == [10, 20, 30]
    call("prune", root, "--keep", "1", "--dry-run")
    assert sorted(root.rglob("*")) == before
