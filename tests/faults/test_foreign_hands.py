"""Another user of the machine: what he makes, owns or may write to never decides what is read or written.

As root, with users that are numbers (tests/users.py). Each attack is tried for real, by a process of the other user.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import StorageError
from deeppart.storage import LOCK_NAME
from tests.faults.foreign import PART, PRECIOUS, config, everything, lineage, mode_of, run, state
from tests.unit.cli_support import call
from tests.users import MATE, STRANGER, TEAM, USER, as_user, needs_root, told_by

# --- the directory on the node ----------------------------------------------------------------------------------------


@needs_root
@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_links_where_files_to_write_over_are_expected(shared: Path, precious: Path, kind: str) -> None:
    """The stranger was first: `local_dir` is his, and what he calls a spare is a file of the job's owner."""
    run(config(shared), 1)
    name = lineage(shared)  # he can read it

    def plant() -> None:
        spares = shared / "scratch" / name / ".spare"
        spares.mkdir(parents=True)
        if kind == "symbolic":
            (spares / PART).symlink_to(precious)

    as_user(STRANGER, plant)
    if kind == "hard":  # where fs.protected_hardlinks is off; here root does it
        os.link(precious, shared / "scratch" / name / ".spare" / PART)
    with pytest.raises(StorageError) as caught:
        run(config(shared, local_dir=str(shared / "scratch")), 2)
    assert str(shared / "scratch") in str(caught.value) and str(STRANGER) in str(caught.value)
    assert "permissions" in str(caught.value), "the way out"


@needs_root
@pytest.mark.parametrize("kind", ["symbolic", "hard", "fifo", "his"])
def test_what_lies_among_the_spares_is_not_written_over_even_where_nobody_asks(
    shared: Path, precious: Path, kind: str
) -> None:
    """``permissions="unchecked"``: whose it is is not asked, but no link is followed and no second name written to."""
    settings = config(shared, local_dir=str(shared / "scratch"), permissions="unchecked")
    planted: list[Path] = []
    with pytest.warns(deeppart.DeeppartWarning, match="unchecked"), deeppart.Checkpointer(settings) as checkpointer:
        for step in (1, 2, 3, 4, 5):
            checkpointer.checkpoint(state(step), step).wait(timeout=200)
            assert checkpointer._pipeline.wait_until_idle(30)
            for path in (shared / "scratch").rglob(".spare*/**/*.dpp"):
                path.unlink()
                if kind == "symbolic":
                    path.symlink_to(precious)
                elif kind == "hard":
                    os.link(precious, path)
                elif kind == "fifo":
                    os.mkfifo(path)
                else:
                    path.write_bytes(PRECIOUS)
                    os.chown(path, STRANGER, STRANGER)
                planted.append(path)
    assert planted, "otherwise this shows nothing"
    loaded = deeppart.load(shared / "persistent")
    assert loaded["step"] == 5


@needs_root
@pytest.mark.parametrize("depth", ["local_dir", "above", "lineage", "level"])
def test_a_directory_that_is_a_strangers(shared: Path, precious: Path, depth: str) -> None:
    run(config(shared), 1)
    local = shared / "scratch" / "of" / "mine"
    his = {"local_dir": local, "above": shared / "scratch", "lineage": local / lineage(shared)}.get(depth)
    if his is None:
        his = local / lineage(shared) / "partner"
    his.parent.mkdir(parents=True, exist_ok=True)
    for each in (shared / "scratch", shared / "scratch" / "of", local):
        if each.exists():
            each.chmod(0o1777)
    his.mkdir()
    os.chown(his, STRANGER, STRANGER)
    with pytest.raises(StorageError, match=str(STRANGER)) as caught:
        run(config(shared, local_dir=str(local)), 2)
    assert str(his) in str(caught.value)
    if depth == "above":
        assert os.listdir(his) == []


@needs_root
def test_users_share_a_directory_with_a_sticky_bit(shared: Path) -> None:
    """As /local/scratch: each has a directory in it that nobody else can look into."""
    run(config(shared, local_dir=str(shared)), 1, 2)
    own = shared / lineage(shared)
    assert mode_of(own) == 0o700 and mode_of(shared) == 0o1777
    with pytest.raises(AssertionError, match="PermissionError"):
        as_user(STRANGER, lambda: os.listdir(own))


def test_nobody_else_can_read_weights_on_a_node(shared: Path) -> None:
    mask = os.umask(0o022)
    try:
        with deeppart.Checkpointer(config(shared, local_dir=str(shared / "scratch"))) as checkpointer:
            for step in (1, 2, 3):
                checkpointer.checkpoint(state(step), step).wait(timeout=200)
            assert checkpointer._pipeline.wait_until_idle(30)
            found = everything(shared / "scratch")
            assert any(path.is_file() for path in found)
            for path in found:
                assert mode_of(path) == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(mask)
    for path in everything(shared / "persistent"):
        private = path.name == LOCK_NAME  # who could read it could lock it
        assert mode_of(path) == (0o755 if path.is_dir() else 0o600 if private else 0o644), path


# --- the persistent directory -----------------------------------------------------------------------------------------


@needs_root
def test_a_persistent_directory_of_another(shared: Path) -> None:
    as_user(STRANGER, lambda: (shared / "persistent").mkdir())
    with pytest.raises(StorageError, match=str(STRANGER)):
        run(config(shared), 1)
    with pytest.raises(StorageError, match=str(STRANGER)):
        run(config(shared, permissions="group"), 1)
    assert os.listdir(shared / "persistent") == []


@needs_root
def test_a_persistent_directory_that_everyone_can_write_to(shared: Path) -> None:
    """Also where they cannot remove what this user makes there (sticky bit): they could still add steps."""
    (shared / "persistent").mkdir()
    for mode in (0o777, 0o1777):
        (shared / "persistent").chmod(mode)
        with pytest.raises(StorageError, match="chmod o-w"):
            run(config(shared), 1)


def job(
    uid: int, directory: Path, step: int, *, groups: tuple[int, ...] = (), umask: int = 0o022, **options: Any
) -> str:
    """A job of another user; returns what it restored, or its error."""

    def train() -> str:
        with deeppart.Checkpointer(config(directory, **options)) as checkpointer:
            live = state(0)
            restored = checkpointer.restore(live)
            told = f"restored {restored}: {live['weight'][0].item()}"
            for number in range(step, step + 3):
                checkpointer.checkpoint(state(number), number).wait(timeout=200)
            return told

    return told_by(uid, train, groups=groups, umask=umask)[1]


@needs_root
@pytest.mark.parametrize("shared", ["disk"], indirect=True)
def test_a_team_takes_turns_in_a_project_directory(shared: Path) -> None:
    project = shared / "project"
    project.mkdir()
    os.chown(project, 0, TEAM)
    project.chmod(0o2770)
    group: dict[str, Any] = {"permissions": "group", "keep": {"persistent": 2}}
    # The first of them, by default: a directory of the group's is no reason to refuse.
    assert job(USER, project, 1, groups=(TEAM,), umask=0o002) == "restored None: 0.0"
    refusal = job(MATE, project, 11, groups=(TEAM,))
    assert "StorageError" in refusal and str(USER) in refusal and 'permissions = "group"' in refusal
    assert job(MATE, project, 11, groups=(TEAM,), umask=0o077, **group) == "restored 3: 3.0"
    assert job(USER, project, 21, groups=(TEAM,), **group) == "restored 13: 13.0"
    assert sorted(path.name[:17] for path in (project / "persistent").glob("step-*")) == [
        f"step-{step:012d}" for step in (22, 23)
    ], "and each removes what the others left"
    assert "StorageError" in job(STRANGER, project, 31)


@needs_root
@pytest.mark.parametrize("shared", ["disk"], indirect=True)
def test_a_user_is_attacked_by_another(shared: Path) -> None:
    """Not root this time; and what is his to read stays readable to others."""
    work = shared / "work"
    work.mkdir()
    os.chown(work, USER, USER)
    as_user(STRANGER, lambda: (shared / "scratch").mkdir(mode=0o777))
    refusal = job(USER, work, 1, local_dir=str(shared / "scratch"))
    assert "StorageError" in refusal and str(STRANGER) in refusal and str(shared / "scratch") in refusal
    assert job(USER, work, 1, local_dir=str(shared / "own")) == "restored None: 0.0"
    loaded = told_by(STRANGER, lambda: deeppart.load(work / "persistent")["weight"][0].item())
    assert loaded == (True, "3.0")
    for command in ("ls", "show", "verify"):
        returned, text = told_by(STRANGER, partial(call, command, work / "persistent"))
        assert returned, text
    assert told_by(STRANGER, partial(call, "prune", work / "persistent", "--keep", 1, "--yes", code=2))[0]


# --- what commands write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["disk"], indirect=True)
def test_an_export_into_a_directory_that_all_share(shared: Path, precious: Path) -> None:
    """It is written under a temporary name, which could be guessed, and its own, which was given."""
    from deeppart.extension.export import export

    run(config(shared), 1)
    (shared / f".model.h5.{os.getpid()}.tmp").symlink_to(precious)
    export(shared / "persistent", shared / "model.h5")
    (shared / "link.h5").symlink_to(precious)
    export(shared / "persistent", shared / "link.h5", overwrite=True)
    assert not (shared / "link.h5").is_symlink()
