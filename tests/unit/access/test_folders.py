"""Directories and files are reached by descriptors that were checked; nothing leads out, nothing of others is used."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import READING, ForeignAccessError, NotRegularError, Rules, node_rules, persistent_rules
from tests.unit.access.directories import NODE, PERSISTENT, mode_of, read
from tests.users import STRANGER, as_user, needs_root

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


# --- what is opened ---------------------------------------------------------------------------------------------------


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


# --- a directory that is exchanged ------------------------------------------------------------------------------------


def test_what_is_begun_in_a_directory_is_finished_there(root: Path) -> None:
    with access.open_folder(root / "step") as folder:
        root.rename(root.with_name("moved"))
        (root / "step").mkdir(parents=True)
        os.close(folder.create("new"))
        folder.rename("new", folder, "newer")
    assert sorted(os.listdir(root.with_name("moved") / "step")) == ["newer", "part"]
    assert os.listdir(root / "step") == []


# --- another user -----------------------------------------------------------------------------------------------------


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
