"""Directories that a user has named, and what is reached below them: nothing leads out, nothing of others is used."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import READING, ForeignAccessError, NotRegularError, Root, Rules
from tests.descriptors import open_at
from tests.storage_faults import StorageFaults
from tests.users import STRANGER, TEAM, USER, as_user, needs_root, told_by

NODE, PERSISTENT = Rules(node=True), Rules()


def read(path: Path) -> bytes:
    with os.fdopen(access.open_file(path), "rb") as file:
        return file.read()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def operations(path: Path) -> dict[str, Callable[[], object]]:
    other = path.with_name("other")
    return {
        "open_file": lambda: os.close(access.open_file(path)),
        "write": lambda: os.close(access.open_file(path, os.O_RDWR)),
        "create": lambda: os.close(access.create(other)),
        "lstat": lambda: access.lstat(path),
        "names_in": lambda: access.names_in(path.parent),
        "rename": lambda: access.rename(path, other),
        "link": lambda: access.link(path, other),
        "remove": lambda: access.remove(path),
        "sync_directory": lambda: access.sync_directory(path.parent),
        "make_folder": lambda: access.make_folder(path.with_name("folder")),
    }


# --- the way to a root ------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    before = open_at(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        access.names_in(Root(tmp_path / "a" / "b", PERSISTENT).path)
    assert caught.value.filename == str(tmp_path / "a") and os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    for below in ("file", "file/x"):
        with pytest.raises(NotADirectoryError) as met:
            Root(tmp_path / below, PERSISTENT).make()
        assert met.value.filename == str(tmp_path / "file")
    assert open_at(tmp_path) == before


def test_every_new_directory_is_made_durable_in_the_one_above(tmp_path: Path) -> None:
    with StorageFaults(tmp_path.parent) as faults:
        for _ in range(2):
            Root(tmp_path / "a" / "b", PERSISTENT).make("c")
        here = tmp_path.name
        assert [each for each in faults.log if each[0] in ("mkdir", "fsync")] == [
            ("mkdir", f"{here}/a"),
            ("fsync", here),
            ("mkdir", f"{here}/a/b"),
            ("fsync", f"{here}/a"),
            ("mkdir", f"{here}/a/b/c"),
            ("fsync", f"{here}/a/b"),
        ]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO, errno.ENOSPC])
def test_a_file_system_that_does_not_sync_directories_need_not(root: Path, code: int) -> None:
    before = open_at(root)
    with StorageFaults(root) as faults:
        faults.refuse(0, code, only=("fsync",))
        if code in (errno.EINVAL, errno.ENOTSUP):
            access.sync_directory(root / "step")
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                access.sync_directory(root / "step")
        assert faults.refused == 1
    assert len(open_at(root)) <= len(before) + 2, "the root, and the step"


@pytest.mark.parametrize(
    ("rules", "directories", "files"),
    [
        (NODE, 0o700, 0o600),
        (Rules("umask", node=True), 0o755, 0o644),
        (PERSISTENT, 0o755, 0o644),
        (Rules("group", node=True), 0o2775, 0o664),
        (Rules("group"), 0o2775, 0o664),
        (Rules("unchecked"), 0o755, 0o644),
    ],
)
def test_modes_of_what_is_made(tmp_path: Path, rules: Rules, directories: int, files: int) -> None:
    mask = os.umask(0o022)
    try:
        step = Root(tmp_path / "a" / "b", rules).make("step")
        os.close(access.create(step / "part"))
        os.umask(0)  # it would be refused the next time
        os.close(access.create(step / "base"))
    finally:
        os.umask(mask)
    for name in ("a", "a/b", "a/b/step"):
        assert mode_of(tmp_path / name) == directories, name
    assert mode_of(step / "part") == files and not mode_of(step / "base") & 0o002


def test_what_was_left_open_on_a_node_is_closed_to_others(tmp_path: Path) -> None:
    for name in ("lineage", "local"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    Root(tmp_path, NODE).make("lineage")
    Root(tmp_path / "local", NODE).make()
    assert mode_of(tmp_path / "lineage") == 0o700
    assert mode_of(tmp_path / "local") == 0o755, "what users may share is left as it is"


# --- below it ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [PERSISTENT, READING, Rules("unchecked")])
def test_a_directory_below_is_never_a_link(tmp_path: Path, rules: Rules) -> None:
    """Also for commands that read, and where nothing else is checked."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "part").write_bytes(b"precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "step").symlink_to(precious)
    root = Root(tmp_path / "root", rules).path
    for name, operation in operations(root / "step" / "part").items():
        with pytest.raises(NotADirectoryError):
            operation()
            pytest.fail(name)
    assert access.exists(root / "step") and not access.exists(root / "step" / "part")
    assert os.listdir(precious) == ["part"] and (precious / "part").read_bytes() == b"precious"


@pytest.mark.parametrize("ask", [access.exists, access.lstat])
def test_what_cannot_be_told_is_no_answer(root: Path, ask: Callable[[Path], object]) -> None:
    with StorageFaults(root) as faults:
        faults.refuse(0, errno.EIO, only=("stat",))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
            ask(root / "step" / "part")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(root / "step" / "part"))


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


def test_what_is_there_is_never_cut_or_replaced(root: Path) -> None:
    os.close(access.open_file(root / "step" / "part", os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    with pytest.raises(FileNotFoundError):
        access.open_file(root / "step" / "new", os.O_RDWR | os.O_CREAT)
    (root / "step" / "link").symlink_to(root / "elsewhere")
    for name in ("part", "link"):
        with pytest.raises(FileExistsError):
            access.create(root / "step" / name)
        with pytest.raises(FileExistsError):
            access.link(root / "step" / "part", root / "step" / name)
    assert read(root / "step" / "part") == b"part" and not access.exists(root / "elsewhere")


def test_a_file_with_a_second_name_is_not_written_over(root: Path) -> None:
    """Whoever may make one (``fs.protected_hardlinks`` is off on some systems) must not have a file overwritten."""
    (root / "precious").write_bytes(b"precious")
    os.link(root / "precious", root / "step" / "planted")
    with pytest.raises(ForeignAccessError, match="2 names"):
        access.open_file(root / "step" / "planted", os.O_RDWR)
    assert read(root / "step" / "planted") == b"precious", "reading it is no harm"
    os.close(access.open_file(root / "step" / "planted", os.O_RDWR, over=False))  # as of what is mapped, to be read


# --- a directory that is exchanged ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [".", "step"])
def test_a_directory_that_comes_back_is_used_again(root: Path, which: str) -> None:
    """Moved away, a file system unmounted: nothing of what was open before is used in its place."""
    directory = Path(root / which)
    moved = directory.with_name("moved")
    assert read(root / "step" / "part") == b"part"
    directory.rename(moved)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read(root / "step" / "part")
        with pytest.raises(FileNotFoundError):
            access.create(root / "step" / "part" if which == "step" else root / "new")
        if which == "step":
            break
        directory.mkdir(exist_ok=True)
        with pytest.raises(FileNotFoundError):
            read(root / "step" / "part")
        directory.rmdir()
    moved.rename(directory)
    assert read(root / "step" / "part") == b"part"


def test_another_directory_in_its_place_is_checked(root: Path) -> None:
    read(root / "step" / "part")
    for path in (Path(root / "step"), Path(root)):
        path.rename(path.with_name("moved"))
        path.mkdir()
        path.chmod(0o777)
        with pytest.raises(ForeignAccessError, match="everyone"):
            access.names_in(root / path.relative_to(root))


def test_what_is_begun_in_a_directory_is_finished_there(root: Path) -> None:
    with access.open_folder(root / "step") as folder:
        Path(root).rename(root.with_name("moved"))
        (Path(root) / "step").mkdir(parents=True)
        os.close(folder.create("new"))
        folder.rename("new", folder, "newer")
    assert sorted(os.listdir(root.with_name("moved") / "step")) == ["newer", "part"]
    assert os.listdir(root / "step") == []


# --- another user -----------------------------------------------------------------------------------------------------


@needs_root
def test_a_directory_or_link_that_a_stranger_has_made_first(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    as_user(STRANGER, lambda: (shared / "scratch").mkdir())
    as_user(STRANGER, lambda: (shared / "link").symlink_to(tmp_path / "precious"))
    for rules in (NODE, PERSISTENT, Rules("umask", node=True), Rules("group", node=True)):
        for path in (shared / "scratch", shared / "scratch" / "below", shared / "link", shared / "link" / "below"):
            with pytest.raises(ForeignAccessError, match=str(STRANGER)):
                Root(path, rules).make()
    assert os.listdir(shared / "scratch") == os.listdir(tmp_path / "precious") == []
    Root(shared / "scratch", Rules("unchecked")).make()


def test_below_a_directory_that_everyone_can_write_to_without_a_sticky_bit(shared: Path) -> None:
    """Whatever is in it can be moved away by others, and something else be put in its place."""
    shared.chmod(0o777)
    for rules in (NODE, PERSISTENT, Rules("group")):
        with pytest.raises(ForeignAccessError, match="0777") as caught:
            Root(shared / "mine", rules).make()
        assert "chmod +t" in caught.value.todo
    assert os.listdir(shared) == []
    shared.chmod(0o1777)
    Root(shared / "mine", PERSISTENT).make()
    Root(shared, NODE).make("lineage")


@needs_root
def test_a_stranger_cannot_have_another_directory_used(shared: Path) -> None:
    """The directory is exchanged over and over while it is used; every file lands in one of its owner's, or nowhere."""
    mine, path = shared / "mine", Root(shared / "mine", PERSISTENT).make("step")
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
    thread.start()
    try:
        for number in range(2000):
            try:
                os.close(access.create(path / f"part-{number}"))
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
    root = Root(shared / "root", PERSISTENT).make()
    (root / "step").mkdir()
    (root / "step" / "part").write_bytes(b"his")
    (root / "own").write_bytes(b"mine")
    os.chown(root / "step" / "part", STRANGER, STRANGER)
    with pytest.raises(ForeignAccessError, match=str(STRANGER)):
        access.open_file(root / "step" / "part")
    os.chown(root / "step", STRANGER, STRANGER)
    with pytest.raises(ForeignAccessError, match=str(STRANGER)):
        access.names_in(root / "step")
    (root / "own").chmod(0o666)
    with pytest.raises(ForeignAccessError, match="everyone"):
        access.open_file(root / "own")
    assert read(Root(shared / "root").path / "step" / "part") == b"his", "commands may read it"


# --- paths that a user has named, and files that only lie there -------------------------------------------------------


def test_nothing_is_made_in_a_directory_that_everyone_can_write_to(tmp_path: Path) -> None:
    """Reading is no harm there."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_bytes(b"there")
    (tmp_path / "open").chmod(0o777)
    for operation in (access.create, access.make_folder):
        with pytest.raises(ForeignAccessError, match="everyone"):
            operation(tmp_path / "open" / "new")
    assert read(tmp_path / "open" / "file") == b"there" and access.names_in(tmp_path / "open") == ["file"]


#: Owner, group and mode of a directory and of a file in it; what USER may not obey, if anything.
FOUND = {
    "one's own": ((USER, USER, 0o755), (USER, USER, 0o644), None),
    "root's group may write": ((USER, 0, 0o775), (USER, 0, 0o664), None),
    "a file of a stranger": ((USER, USER, 0o700), (STRANGER, USER, 0o644), "file"),
    "a file that a team may write to": ((USER, USER, 0o755), (USER, TEAM, 0o664), "file"),
    "a directory of a stranger": ((STRANGER, USER, 0o755), (USER, USER, 0o644), "directory"),
    "a shared directory, as /tmp": ((0, 0, 0o1777), (USER, USER, 0o644), "directory"),
    "a directory that a team may write to": ((USER, TEAM, 0o2775), (USER, USER, 0o644), "directory"),
}


@pytest.mark.parametrize("what", FOUND)
@needs_root
def test_a_file_that_only_lies_there_is_obeyed_where_others_could_not_write_it(shared: Path, what: str) -> None:
    """``deeppart.toml`` of the working directory, whatever groups a user is in."""
    directory, file, refused = FOUND[what]
    found = shared / "found" / "deeppart.toml"
    found.parent.mkdir()
    found.touch()
    for path, (uid, gid, mode) in ((found.parent, directory), (found, file)):
        os.chown(path, uid, gid)
        path.chmod(mode)
    returned, text = told_by(USER, partial(access.open_beside_user, found), groups=(TEAM,))
    assert returned == (refused is None), text
    if refused is not None:
        culprit = found if refused == "file" else found.parent
        assert "ForeignAccessError" in text and f"'{culprit}'" in text


def test_foreign_files_are_read_whoever_they_belong_to_by_way_of_links_too(tmp_path: Path) -> None:
    """As in the folders of Hugging Face."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0f").write_bytes(b"bytes")
    (tmp_path / "blobs" / "0f").chmod(0o666)
    (tmp_path / "snapshot").symlink_to("blobs")
    (tmp_path / "model").symlink_to("snapshot/0f")
    with os.fdopen(access.open_foreign(tmp_path / "model"), "rb") as file:
        assert file.read() == b"bytes"
    assert access.names_in(tmp_path / "snapshot") == ["0f"]


@pytest.mark.timeout(20)
def test_nothing_but_files_is_opened_and_no_fifo_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for path in (tmp_path / "fifo", tmp_path / "link", tmp_path, Path("/dev/null")):
        with pytest.raises(NotRegularError):
            access.open_foreign(path)
    with pytest.raises(FileNotFoundError):
        access.open_foreign(tmp_path / "none")


def test_a_directory_stays_open_while_a_thread_goes_on_from_it(tmp_path: Path) -> None:
    """More directories than are held open: what one thread lets go of, another is entering the next one from."""
    for number in range(12):
        (tmp_path / f"{number}" / "inner").mkdir(parents=True)
    root, failed = Root(tmp_path, NODE), list[OSError]()

    def make_and_remove(worker: int) -> None:
        try:
            for turn in range(500):
                path = root.path / f"{(7 * turn + worker) % 12}" / "inner" / f"{worker}"
                os.close(access.create(path))
                access.remove(path)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=make_and_remove, args=(worker,)) for worker in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert failed == []
