"""Single operations by path: none leads out of a guarded directory, and errors name the path that was given."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import READING, ForeignAccessError, Rules, persistent_rules
from deeppart.testing.faults import StorageFaults
from tests.unit.access.directories import NODE, PERSISTENT, mode_of, operations, read
from tests.users import STRANGER, TEAM, USER, needs_root, told_by


@pytest.mark.parametrize("rules", [PERSISTENT, READING, persistent_rules("unchecked")])
def test_a_directory_below_is_never_a_link(tmp_path: Path, rules: Rules) -> None:
    """Also for commands that read, and where nothing else is checked."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "part").write_bytes(b"precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "step").symlink_to(precious)
    with access.guarded(tmp_path / "root", rules):
        for name, operation in operations(tmp_path / "root" / "step" / "part").items():
            with pytest.raises(NotADirectoryError):
                operation()
                pytest.fail(name)
        assert not access.is_directory(tmp_path / "root" / "step") and access.exists(tmp_path / "root" / "step")
        assert not access.exists(tmp_path / "root" / "step" / "part")
    assert os.listdir(precious) == ["part"] and (precious / "part").read_bytes() == b"precious"


def test_a_file_is_never_made_in_place_of_another(root: Path) -> None:
    with pytest.raises(FileExistsError):
        access.create(root / "step" / "part")
    (root / "step" / "link").symlink_to(root / "elsewhere")
    with pytest.raises(FileExistsError):
        access.create(root / "step" / "link")
    assert not (root / "elsewhere").exists() and read(root / "step" / "part") == b"part"


# --- is it there, and what is it --------------------------------------------------------------------------------------


def test_what_is_there(root: Path) -> None:
    (root / "dangling").symlink_to("nothing")
    (root / "to step").symlink_to("step")
    there = {"step": True, "step/part": True, "dangling": True, "to step": True, "x": False, "x/y": False}
    assert {name: access.exists(root / name) for name in there} == there
    assert not access.exists(root / "step" / "part" / "below a file")
    assert [name for name in there if access.is_directory(root / name)] == ["step"]
    assert not access.is_directory(root / "step" / "part" / "below a file")
    assert access.lstat(root / "step" / "part").st_size == 4


@pytest.mark.parametrize("ask", [access.exists, access.is_directory, access.lstat])
def test_what_cannot_be_told_is_no_answer(root: Path, ask: Callable[[Path], object]) -> None:
    with StorageFaults(root) as faults:
        faults.refuse(0, errno.EIO, only=("stat",))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
            ask(root / "step" / "part")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(root / "step" / "part"))
    with pytest.raises(OSError, match="too long"):
        ask(root / ("x" * 300))


#: Owner, group and mode of a directory and of a file in it; what USER may not obey, if anything.
FOUND = {
    "one's own": ((USER, USER, 0o755), (USER, USER, 0o644), None),
    "root's": ((0, 0, 0o755), (0, 0, 0o644), None),
    "root's group may write": ((USER, 0, 0o775), (USER, 0, 0o664), None),
    "a file of a stranger": ((USER, USER, 0o700), (STRANGER, USER, 0o644), "file"),
    "a file that everyone may write to": ((USER, USER, 0o755), (USER, USER, 0o646), "file"),
    "a file that a team may write to": ((USER, USER, 0o755), (USER, TEAM, 0o664), "file"),
    "a directory of a stranger": ((STRANGER, USER, 0o755), (USER, USER, 0o644), "directory"),
    "a directory that everyone may write to": ((USER, USER, 0o777), (USER, USER, 0o644), "directory"),
    "a shared directory, as /tmp": ((0, 0, 0o1777), (USER, USER, 0o644), "directory"),
    "a directory that a team may write to": ((USER, TEAM, 0o2775), (USER, USER, 0o644), "directory"),
}


@pytest.mark.parametrize("what", FOUND)
@needs_root
def test_a_file_that_only_lies_there_is_obeyed_where_others_could_not_write_it(tmp_path: Path, what: str) -> None:
    """``deeppart.toml`` of the working directory, whatever groups a user is in."""
    directory, file, refused = FOUND[what]
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    found = tmp_path / "found" / "deeppart.toml"
    found.parent.mkdir()
    found.touch()
    for path, (uid, gid, mode) in ((found.parent, directory), (found, file)):
        os.chown(path, uid, gid)
        path.chmod(mode)
    returned, text = told_by(USER, partial(access.open_found, found), groups=(TEAM,))
    assert returned == (refused is None), text
    if refused is not None:
        culprit = found if refused == "file" else found.parent
        assert "ForeignAccessError" in text and f"'{culprit}'" in text


def test_a_link_that_only_lies_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "deeppart.toml").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch()
    with pytest.raises(OSError, match="symbolic links"):
        access.open_found(tmp_path / "deeppart.toml")
    with pytest.raises(FileNotFoundError):
        access.open_found(tmp_path / "gone")


# --- opening and making -----------------------------------------------------------------------------------------------


def test_what_is_there_is_never_cut_or_made_by_opening_it(root: Path) -> None:
    os.close(access.open_file(root / "step" / "part", os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    assert read(root / "step" / "part") == b"part"
    with pytest.raises(FileNotFoundError):
        access.open_file(root / "step" / "new", os.O_RDWR | os.O_CREAT)
    assert os.listdir(root / "step") == ["part"]


def test_a_second_name_is_no_harm_to_what_is_not_written_over(root: Path) -> None:
    """As of a lock file, which is opened to be locked."""
    os.link(root / "step" / "part", root / "second")
    os.close(access.open_file(root / "second", os.O_RDWR, over=False))
    with pytest.raises(ForeignAccessError):
        access.open_file(root / "second", os.O_RDWR)


def test_nothing_is_made_in_a_directory_that_everyone_can_write_to(tmp_path: Path) -> None:
    """Also where nothing is guarded; reading is no harm there."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_bytes(b"there")
    (tmp_path / "open").chmod(0o777)
    for operation in (access.create, access.make_folder):
        with pytest.raises(ForeignAccessError, match="everyone"):
            operation(tmp_path / "open" / "new")
    assert read(tmp_path / "open" / "file") == b"there" and access.names_in(tmp_path / "open") == ["file"]


@pytest.mark.parametrize("rules", [NODE, PERSISTENT, Rules("group")])
def test_a_folder_is_made_once_by_the_rules_and_made_durable(tmp_path: Path, rules: Rules) -> None:
    access.make_directory(tmp_path / "root", rules)
    with access.guarded(tmp_path / "root", rules), StorageFaults(tmp_path) as faults:
        access.make_folder(tmp_path / "root" / "step")
        assert [each for each in faults.log if each[0] in ("mkdir", "fsync")] == [
            ("mkdir", "root/step"),
            ("fsync", "root"),
        ]
        (tmp_path / "root" / "step" / "part").touch()
        faults.clear()
        access.make_folder(tmp_path / "root" / "step")
        assert not [each for each in faults.log if each[0] in ("mkdir", "fsync")]
    assert os.listdir(tmp_path / "root" / "step") == ["part"]
    assert mode_of(tmp_path / "root" / "step") == mode_of(tmp_path / "root")


def test_a_folder_that_another_rank_has_made_meanwhile(root: Path) -> None:
    with StorageFaults(root) as faults:
        faults.refuse(0, errno.EEXIST, only=("mkdir",))
        access.make_folder(root / "mine")  # as if it had come between the look and ``mkdir``
        assert faults.refused == 1


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_second_name_must_be_free_and_a_link_is_not_followed(root: Path) -> None:
    (root / "taken").write_bytes(b"taken")
    with pytest.raises(FileExistsError):
        access.link(root / "step" / "part", root / "taken")
    assert read(root / "taken") == b"taken"
    (root / "pointer").symlink_to("taken")
    access.link(root / "pointer", root / "second pointer")
    assert (root / "second pointer").is_symlink()
