"""Descriptors of directories and files: what is made durable, what is refused, and nothing is left open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppart.access import Rules, node_rules, persistent_rules
from deeppart.access.path_walk import ENTRIES, FILE, STEP, close_descriptor, set_mode, sync_entries, who
from deeppart.testing.faults import StorageFaults
from tests.unit.access.directories import descriptors, mode_of
from tests.users import STRANGER, TEAM, as_user, needs_root, told_by


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


def test_who_this_process_is() -> None:
    assert who().uid == os.geteuid() and who().groups >= {os.getegid(), *os.getgroups()}
    assert who() is who(), "it is asked for with every operation, and found out once"


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


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_step_on_the_way_needs_no_right_to_read_and_follows_no_link(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "closed").mkdir(mode=0o300)
    (tmp_path / "link").symlink_to("closed")
    (tmp_path / "file").touch()
    descriptor = opened(tmp_path / "closed", STEP)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.listdir(descriptor)  # it serves to go on from, and for nothing else
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError):
            os.open(tmp_path / name, STEP)


@pytest.mark.timeout(10)
def test_a_file_is_opened_without_waiting_and_is_not_passed_on(tmp_path: Path, opened: Open) -> None:
    os.mkfifo(tmp_path / "fifo")
    descriptor = opened(tmp_path / "fifo", os.O_RDONLY | FILE)  # would wait for somebody who writes
    assert not os.get_inheritable(descriptor)
    (tmp_path / "link").symlink_to("fifo")
    with pytest.raises(OSError, match="symbolic links"):
        os.open(tmp_path / "link", os.O_RDONLY | FILE)
    assert sorted(os.listdir(opened(tmp_path, ENTRIES))) == ["fifo", "link"]


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "directory", "file"),
    [
        (node_rules("private"), 0o700, 0o600),
        (persistent_rules("private"), 0o700, 0o600),
        (node_rules("umask"), 0o700, 0o600),
        (node_rules("group"), 0o2770, 0o660),
        (persistent_rules("group"), 0o2770, 0o660),
    ],
)
def test_only_a_group_gets_back_what_the_umask_took(
    tmp_path: Path, opened: Open, rules: Rules, directory: int, file: int
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o700)
    set_mode(opened(tmp_path / "folder", STEP), rules)
    assert mode_of(tmp_path / "folder") == directory
    descriptor = opened(tmp_path / "file", os.O_CREAT | os.O_RDWR | FILE)
    os.fchmod(descriptor, 0o600)
    set_mode(descriptor, rules)
    assert mode_of(tmp_path / "file") == file


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


def test_closing_says_nothing(tmp_path: Path) -> None:
    """Also of one that is closed already, as a storage that has failed may leave it."""
    descriptor = os.open(tmp_path, STEP)
    close_descriptor(descriptor)
    close_descriptor(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_entries_are_made_durable_through_any_descriptor(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "folder").mkdir()
    given = [opened(tmp_path / "folder", flags) for flags in (STEP, ENTRIES)]
    before = descriptors()
    with StorageFaults(tmp_path) as faults:
        for descriptor in given:
            sync_entries(descriptor)
        assert [path for name, path in faults.log if name == "fsync"] == ["folder", "folder"]
    assert descriptors() <= before


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_that_does_not_sync_directories_need_not(tmp_path: Path, opened: Open, code: int) -> None:
    (tmp_path / "folder").mkdir()
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, code, only=("fsync",))
        sync_entries(opened(tmp_path / "folder", STEP))
        assert faults.refused == 1


def test_a_real_file_system_that_does_not_sync_directories(opened: Open) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(opened(Path("/proc"), ENTRIES))
    sync_entries(opened(Path("/proc"), STEP))


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


def test_what_is_no_open_directory_is_an_error(tmp_path: Path, opened: Open) -> None:
    descriptor = os.open(tmp_path, STEP)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_entries(descriptor)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_entries(opened(tmp_path / "file", os.O_RDONLY | FILE))
