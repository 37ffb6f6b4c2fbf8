"""The way to a directory, from the root of the file system: what is made, which links are followed, who may own it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import ForeignAccessError, node_place, node_rules, persistent_rules
from deeppart.access.path_walk import (
    STEP,
    components,
    descend,
    set_mode,
    sync_entries,
    walk,
    who,
)
from deeppart.testing.faults import StorageFaults
from tests.unit.access.directories import NODE, PERSISTENT, descriptors, mode_of, umasked
from tests.users import STRANGER, TEAM, as_user, needs_root, told_by


def test_whatever_the_umask_not_everyone_may_write(tmp_path: Path) -> None:
    """It would be refused the next time."""
    mask = os.umask(0)
    try:
        access.make_directory(tmp_path / "a", PERSISTENT)
        with access.guarded(tmp_path / "a", PERSISTENT):
            os.close(access.create(tmp_path / "a" / "file"))
    finally:
        os.umask(mask)
    assert not (mode_of(tmp_path / "a") | mode_of(tmp_path / "a" / "file")) & 0o002


def test_a_node_directory_that_was_made_for_all_to_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "lineage").mkdir(mode=0o755)
    access.make_directory(tmp_path / "lineage", NODE)
    assert mode_of(tmp_path / "lineage") == 0o700
    (tmp_path / "place").mkdir(mode=0o755)
    access.make_directory(tmp_path / "place", node_place("private"))
    assert mode_of(tmp_path / "place") == umasked(0o755), "what users may share is left as it is"


def test_links_above_are_followed_and_dots_are_understood(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("absolute/deep/..")
    for name in ("absolute", "relative", "relative/deep/..", "./real/./"):
        root = tmp_path / name / "ckpt"
        access.make_directory(root, PERSISTENT)
        with access.guarded(root, PERSISTENT):
            if not access.exists(root / "file"):
                os.close(access.create(root / "file"))
    assert os.listdir(tmp_path / "real" / "ckpt") == ["file"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        access.make_directory(tmp_path / "loop" / "x", PERSISTENT)


def test_a_lineage_directory_is_no_link(tmp_path: Path) -> None:
    """It is this library's, which makes none; ``local_dir`` itself may be one."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "local").symlink_to("precious")
    access.make_directory(tmp_path / "local", node_place("private"))
    (tmp_path / "local" / "lineage").symlink_to("..")
    with pytest.raises(NotADirectoryError):
        access.make_directory(tmp_path / "local" / "lineage", NODE)


@needs_root
def test_a_directory_that_a_stranger_has_made_first(shared: Path) -> None:
    as_user(STRANGER, lambda: (shared / "scratch").mkdir())
    for rules in (NODE, node_place("private"), PERSISTENT, node_rules("umask"), node_rules("group")):
        with pytest.raises(ForeignAccessError, match=str(STRANGER)):
            access.make_directory(shared / "scratch", rules)
        if rules.node:
            with pytest.raises(ForeignAccessError, match=str(STRANGER)):
                access.make_directory(shared / "scratch" / "below", rules)
    assert os.listdir(shared / "scratch") == []
    access.make_directory(shared / "scratch", persistent_rules("unchecked"))


@needs_root
def test_a_link_that_a_stranger_has_made(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    as_user(STRANGER, lambda: (shared / "scratch").symlink_to(tmp_path / "precious"))
    for rules in (node_place("private"), PERSISTENT):
        with pytest.raises(ForeignAccessError, match=str(STRANGER)):
            access.make_directory(shared / "scratch" / "mine", rules)
    assert os.listdir(tmp_path / "precious") == []


@needs_root
def test_below_a_directory_that_everyone_can_write_to_without_a_sticky_bit(shared: Path) -> None:
    """Whatever is in it can be moved away by others, and something else be put in its place."""
    shared.chmod(0o777)
    for rules in (node_place("private"), NODE, PERSISTENT, persistent_rules("group")):
        with pytest.raises(ForeignAccessError, match="0777"):
            access.make_directory(shared / "mine", rules)
    assert os.listdir(shared) == []
    shared.chmod(0o1777)
    access.make_directory(shared / "mine", NODE)


# --- walking ----------------------------------------------------------------------------------------------------------


def leads_to(descriptor: int) -> Path:
    """Where a descriptor is; closes it."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/a/b/c", ["c", "b", "a"]),
        ("a//b/./c/", ["c", "b", "a"]),
        ("/", []),
        ("", []),
        (".", []),
        ("..", [".."]),
        ("/a/../b", ["b", "..", "a"]),
        ("/.hidden/...", ["...", ".hidden"]),
    ],
)
def test_names_to_go_through(path: str, names: list[str]) -> None:
    assert components(path) == names


def test_a_walk_makes_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    assert leads_to(walk(str(tmp_path), PERSISTENT)) == tmp_path
    assert leads_to(walk("/", PERSISTENT)) == Path("/")
    before = descriptors()
    with pytest.raises(FileNotFoundError) as caught:
        walk(str(tmp_path / "a" / "b"), PERSISTENT)
    assert caught.value.filename == str(tmp_path / "a") and os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    for below in ("file", "file/x"):
        with pytest.raises(NotADirectoryError) as met:
            walk(str(tmp_path / below), PERSISTENT)
        assert met.value.filename == str(tmp_path / "file")
    assert descriptors() <= before


def test_as_many_links_as_the_kernel_follows(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(1, 42):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert leads_to(walk(str(tmp_path / "40"), PERSISTENT)) == tmp_path / "0"
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        walk(str(tmp_path / "41"), PERSISTENT)


def test_the_last_directory_of_a_node_is_no_link_but_those_above_may_be(tmp_path: Path) -> None:
    (tmp_path / "real" / "lineage").mkdir(parents=True)
    (tmp_path / "local").symlink_to("real")
    assert leads_to(walk(str(tmp_path / "local" / "lineage"), NODE)) == tmp_path / "real" / "lineage"
    for rules in (PERSISTENT, node_place("private")):
        assert leads_to(walk(str(tmp_path / "local"), rules)) == tmp_path / "real"
    with pytest.raises(NotADirectoryError):
        walk(str(tmp_path / "local"), NODE)


def test_going_on_below_follows_no_link_and_checks_each(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("b")
    (tmp_path / "a" / "open").mkdir()
    (tmp_path / "a" / "open").chmod(0o1777)
    start = os.open(tmp_path, os.O_PATH)
    before = descriptors()
    try:
        assert leads_to(descend(start, str(tmp_path), ["b", "a"], PERSISTENT)) == tmp_path / "a" / "b"
        for names, error in ((["link", "a"], NotADirectoryError), (["c", "b", "a"], FileNotFoundError)):
            path = str(tmp_path.joinpath(*reversed(names)))
            with pytest.raises(error) as caught:
                descend(start, str(tmp_path), names, PERSISTENT)
            assert caught.value.filename == path
        with pytest.raises(ForeignAccessError, match="everyone"):
            descend(start, str(tmp_path), ["open", "a"], PERSISTENT)  # a sticky bit is not enough here
        assert descriptors() <= before, "none is left open; the first one stays"
    finally:
        os.close(start)


# --- making -----------------------------------------------------------------------------------------------------------


def test_every_new_directory_is_made_durable_in_the_one_above(tmp_path: Path) -> None:
    with StorageFaults(tmp_path.parent) as faults:
        access.make_directory(tmp_path / "a" / "b", PERSISTENT)
        here = tmp_path.name
        assert [each for each in faults.log if each[0] in ("mkdir", "fsync")] == [
            ("mkdir", f"{here}/a"),
            ("fsync", here),
            ("mkdir", f"{here}/a/b"),
            ("fsync", f"{here}/a"),
        ]
        faults.clear()
        access.make_directory(tmp_path / "a" / "b", PERSISTENT)
        assert not [each for each in faults.log if each[0] in ("mkdir", "fsync")]


def test_a_directory_that_another_rank_has_made_meanwhile(tmp_path: Path) -> None:
    """It was missed first, and is there when it is to be made."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOENT, only=("open",))
        access.make_directory(tmp_path / "a", PERSISTENT)
        assert faults.refused == 1
    assert os.listdir(tmp_path / "a") == ["file"]


@pytest.fixture
def opened() -> Iterator[Callable[[Path, int], int]]:
    """``os.open``; what is still open at the end of the test is closed."""
    found: list[int] = []

    def open_it(path: Path, flags: int) -> int:
        found.append(os.open(path, flags))
        return found[-1]

    yield open_it
    for descriptor in found:
        os.close(descriptor)


Open = Callable[[Path, int], int]


# --- who we are -------------------------------------------------------------------------------------------------------


@needs_root
def test_another_effective_user_is_noticed_and_so_is_the_return() -> None:
    """As root that becomes a user for a while, in one process."""
    returned, text = told_by(STRANGER, lambda: (who().uid, TEAM in who().groups), groups=(TEAM,))
    assert returned and text == str((STRANGER, True)), text
    before = who()
    os.seteuid(STRANGER)
    try:
        assert who().uid == STRANGER
    finally:
        os.seteuid(0)
    assert who() == before and before.uid == 0


# --- modes ------------------------------------------------------------------------------------------------------------


@needs_root
def test_a_mode_that_cannot_be_set_is_no_error(tmp_path: Path) -> None:
    """Some file systems have no modes, and whose it is gets asked when it is opened."""
    tmp_path.chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o755)
    descriptor = os.open(tmp_path / "theirs", STEP)
    try:
        as_user(STRANGER, lambda: set_mode(descriptor, node_rules("group")))
        assert mode_of(tmp_path / "theirs") == 0o755
    finally:
        os.close(descriptor)


# --- sync and close ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_that_does_not_sync_directories_need_not(tmp_path: Path, opened: Open, code: int) -> None:
    (tmp_path / "folder").mkdir()
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, code, only=("fsync",))
        sync_entries(opened(tmp_path / "folder", STEP))
        assert faults.refused == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_entries_that_may_not_be_durable_are_an_error(tmp_path: Path, opened: Open, code: int) -> None:
    (tmp_path / "folder").mkdir()
    descriptor = opened(tmp_path / "folder", STEP)
    before = descriptors()
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, code, only=("fsync",))
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_entries(descriptor)
    assert descriptors() <= before
