"""Directories and files are reached by descriptors that were checked; nothing leads out, nothing of others is used."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import (
    READING,
    ForeignAccessError,
    NotRegularError,
    Rules,
    node_place,
    node_rules,
    persistent_rules,
)
from tests.users import STRANGER, as_user, needs_root

NODE, PERSISTENT = node_rules("private"), persistent_rules("private")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that everyone can write to, as /tmp, and reach."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o077 == 0:
            parent.chmod(0o711)
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A directory that is guarded, with a step in it."""
    directory = tmp_path / "root"
    access.make_directory(directory, PERSISTENT)
    with access.guarded(directory, PERSISTENT):
        (directory / "step").mkdir()
        (directory / "step" / "part").write_bytes(b"part")
        yield directory


def read(path: Path) -> bytes:
    descriptor = access.open_file(path)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def umasked(mode: int) -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- what is made -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "directories", "files"),
    [
        (NODE, 0o700, 0o600),
        (node_rules("umask"), 0o755, 0o644),
        (PERSISTENT, 0o755, 0o644),
        (node_rules("group"), 0o2775, 0o664),
        (persistent_rules("group"), 0o2775, 0o664),
        (persistent_rules("unchecked"), 0o755, 0o644),
    ],
)
def test_modes_of_what_is_made(tmp_path: Path, rules: Rules, directories: int, files: int) -> None:
    mask = os.umask(0o022)
    try:
        access.make_directory(tmp_path / "a" / "b", rules)
        with access.guarded(tmp_path / "a" / "b", rules), access.open_folder(tmp_path / "a" / "b") as folder:
            folder.make("step")
            os.close(access.create(tmp_path / "a" / "b" / "step" / "part"))
    finally:
        os.umask(mask)
    for name in ("a", "a/b", "a/b/step"):
        assert mode_of(tmp_path / name) == directories, name
    assert mode_of(tmp_path / "a" / "b" / "step" / "part") == files


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


def test_a_file_is_never_made_in_place_of_another(root: Path) -> None:
    with pytest.raises(FileExistsError):
        access.create(root / "step" / "part")
    (root / "step" / "link").symlink_to(root / "elsewhere")
    with pytest.raises(FileExistsError):
        access.create(root / "step" / "link")
    assert not (root / "elsewhere").exists() and read(root / "step" / "part") == b"part"


# --- nothing leads out ------------------------------------------------------------------------------------------------


def operations(path: Path) -> dict[str, Callable[[], object]]:
    other = path.with_name("other")
    return {
        "open_file": lambda: os.close(access.open_file(path)),
        "write": lambda: os.close(access.open_file(path, os.O_RDWR)),
        "create": lambda: os.close(access.create(other)),
        "look": lambda: access.look(path),
        "names_in": lambda: access.names_in(path.parent),
        "rename": lambda: access.rename(path, other),
        "link": lambda: access.link(path, other),
        "remove": lambda: access.remove(path),
        "sync_directory": lambda: access.sync_directory(path.parent),
    }


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


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo", "socket", "device"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(root: Path, kind: str, flags: int) -> None:
    path = root / "step" / "thing"
    if kind == "link":
        path.symlink_to(root / "step" / "part")
    elif kind == "dangling":
        path.symlink_to(root / "nothing")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        there = os.getcwd()
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # addresses are short
            server.bind(path.name)
            os.chdir(there)
    elif os.geteuid() == 0:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        pytest.skip("devices are made by root")
    with pytest.raises(NotRegularError):
        access.open_file(path, flags)


def test_a_file_with_a_second_name_is_not_written_over(root: Path) -> None:
    """Whoever may make one (``fs.protected_hardlinks`` is off on some systems) must not have a file overwritten."""
    (root / "precious").write_bytes(b"precious")
    os.link(root / "precious", root / "step" / "planted")
    with pytest.raises(ForeignAccessError, match="2 names"):
        access.open_file(root / "step" / "planted", os.O_RDWR)
    assert read(root / "step" / "planted") == b"precious", "reading it is no harm"


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


def test_errors_name_the_path(root: Path) -> None:
    for operation in (access.open_file, access.remove, access.look):
        with pytest.raises(FileNotFoundError) as caught:
            operation(root / "step" / "nothing")
        assert caught.value.filename == str(root / "step" / "nothing")
    with pytest.raises(FileNotFoundError) as caught:
        access.names_in(root / "nowhere")
    assert caught.value.filename == str(root / "nowhere")


# --- a directory that is exchanged ------------------------------------------------------------------------------------


def test_what_is_begun_in_a_directory_is_finished_there(root: Path) -> None:
    with access.open_folder(root / "step") as folder:
        root.rename(root.with_name("moved"))
        (root / "step").mkdir(parents=True)
        os.close(folder.create("new"))
        folder.rename("new", folder, "newer")
    assert sorted(os.listdir(root.with_name("moved") / "step")) == ["newer", "part"]
    assert os.listdir(root / "step") == []


def test_a_directory_that_comes_back_is_used_again(root: Path) -> None:
    """Moved away, a file system unmounted: nothing of what was open before is used in its place."""
    assert read(root / "step" / "part") == b"part"
    root.rename(root.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        read(root / "step" / "part")
    root.mkdir()
    with pytest.raises(FileNotFoundError):
        read(root / "step" / "part")
    root.rmdir()
    root.with_name("moved").rename(root)
    assert read(root / "step" / "part") == b"part"


def test_descriptors_are_given_back(root: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    read(root / "step" / "part")
    before = opened()
    for _ in range(20):
        read(root / "step" / "part")
        for operation in operations(root / "step" / "missing").values():
            with contextlib.suppress(OSError):
                operation()
        if access.exists(root / "step" / "other"):
            access.remove(root / "step" / "other")
    assert opened() == before
    access.release(root, PERSISTENT)
    assert opened() == before - 1
    access.guard(root, PERSISTENT)


def test_rules_of_a_job_come_before_those_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)
    with access.guarded(tmp_path / "root", READING):
        assert access.names_in(tmp_path / "root") == []
        with access.guarded(tmp_path / "root", PERSISTENT):
            with pytest.raises(ForeignAccessError):
                access.names_in(tmp_path / "root")
        assert access.names_in(tmp_path / "root") == []


# --- another user -----------------------------------------------------------------------------------------------------


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


@needs_root
def test_a_stranger_cannot_have_another_directory_used(shared: Path) -> None:
    """The directory is exchanged over and over while it is used; every file lands in one of its owner's, or nowhere."""
    shared.chmod(0o1777)
    mine = shared / "mine"
    access.make_directory(mine, PERSISTENT)
    mine.joinpath("step").mkdir()
    shared.chmod(0o777)  # from now on anyone can; what was opened before stays in use as long as it is there
    as_user(STRANGER, lambda: (shared / "his" / "step").mkdir(parents=True))
    as_user(STRANGER, lambda: (shared / "his").chmod(0o777))
    as_user(STRANGER, lambda: (shared / "his" / "step").chmod(0o777))
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            os.rename(mine, shared / "away")
            os.rename(shared / "his", mine)
            os.rename(mine, shared / "his")
            os.rename(shared / "away", mine)

    # A thread, with root's rights, does what the mode now lets the stranger do: faster than a process could.
    thread = threading.Thread(target=exchange)
    refused = made = 0
    with access.guarded(mine, PERSISTENT):
        thread.start()
        try:
            for number in range(2000):
                try:
                    os.close(access.create(mine / "step" / f"part-{number}"))
                    made += 1
                except (ForeignAccessError, FileNotFoundError):
                    refused += 1
        finally:
            stop.set()
            thread.join()
    assert os.listdir(shared / "his" / "step") == [], "nothing was written where he could read or change it"
    assert len(os.listdir(mine / "step")) == made and refused


@needs_root
def test_what_a_stranger_owns_below(shared: Path) -> None:
    """Somehow it has come there: by root's hand, or before the directory was closed to others."""
    root = shared / "root"
    access.make_directory(root, PERSISTENT)
    (root / "step").mkdir()
    (root / "step" / "part").write_bytes(b"his")
    (root / "own").write_bytes(b"mine")
    os.chown(root / "step" / "part", STRANGER, STRANGER)
    with access.guarded(root, PERSISTENT):
        with pytest.raises(ForeignAccessError, match=str(STRANGER)):
            access.open_file(root / "step" / "part")
        os.chown(root / "step", STRANGER, STRANGER)
        with pytest.raises(ForeignAccessError, match=str(STRANGER)):
            access.names_in(root / "step")
        (root / "own").chmod(0o666)
        with pytest.raises(ForeignAccessError, match="everyone"):
            access.open_file(root / "own")
    with access.guarded(root, READING):
        assert read(root / "step" / "part") == b"his"
