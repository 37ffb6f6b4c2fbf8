"""Giving a file its name only if nothing has it, in each of the three ways; and second names."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from deeppart import access
from deeppart.errors import StorageError
from deeppart.storage import DirectoryOwner, DurableFile, PosixStore, exclusive
from deeppart.storage.exclusive import rename_new

WAYS = ("rename", "link", "claim")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Those before it are refused, as file systems do that do not have them."""
    use(request.param, monkeypatch)
    return str(request.param)


def use(way: str, patch: Any = None) -> None:
    def refuse(code: int) -> Any:
        def refused(*arguments: Any, **options: Any) -> None:
            raise OSError(code, os.strerror(code))

        return refused

    setter = setattr if patch is None else patch.setattr
    if way != "rename":
        setter(exclusive, "rename_noreplace", refuse(errno.EINVAL))
    if way == "claim":
        setter(os, "link", refuse(errno.EPERM))


@pytest.fixture(params=["memory", "disk"])
def root(request: pytest.FixtureRequest, memory: Path, tmp_path: Path) -> Path:
    return memory if request.param == "memory" else tmp_path


def test_whatever_has_the_name_stays(way: str, root: Path) -> None:
    (root / "directory").mkdir()
    (root / "dangling").symlink_to(root / "nothing")
    (root / "empty").touch()
    for name in ("directory", "dangling", "empty"):
        (root / "temporary").write_bytes(b"new")
        with pytest.raises(FileExistsError):
            rename_new(root / "temporary", root / name)
    assert (root / "dangling").is_symlink() and not (root / "nothing").exists()
    assert (root / "empty").read_bytes() == b"" and (root / "directory").is_dir()


def test_whoever_dies_with_a_claim_leaves_a_name_that_is_not_given_away(tmp_path: Path) -> None:
    """Nothing half done is ever to be seen under the name itself, and the claim that is in the way is named."""
    (tmp_path / ".name.tmp-0").touch()
    (tmp_path / "temporary").write_bytes(b"new")
    with pytest.raises(FileExistsError, match="if none does, remove") as refused:
        exclusive.claim_new(tmp_path / "temporary", tmp_path / "name")
    assert refused.value.filename == str(tmp_path / ".name.tmp-0")
    assert not (tmp_path / "name").exists() and (tmp_path / "temporary").read_bytes() == b"new"


def _race(way: str, root: Path, number: int, go: Any) -> None:
    use(way)
    go.wait(60)
    for name in range(50):
        try:
            PosixStore(root).put_new(str(name), bytes([number]) * 1000)
        except StorageError as error:
            assert error.errno == errno.EEXIST
        else:
            os.close(os.open(root / f"won-{name}-{number}", os.O_CREAT | os.O_EXCL))


@pytest.mark.parametrize("name", WAYS)
def test_of_several_processes_exactly_one_has_each_name(name: str, root: Path) -> None:
    context = multiprocessing.get_context("fork")
    go = context.Event()
    jobs = [context.Process(target=_race, args=(name, root, number, go)) for number in range(4)]
    for job in jobs:
        job.start()
    go.set()
    for job in jobs:
        job.join(100)
        assert job.exitcode == 0
    for file in range(50):
        (winner,) = root.glob(f"won-{file}-*")
        assert (root / str(file)).read_bytes() == bytes([int(winner.name.split("-")[2])]) * 1000
    assert len(list(root.iterdir())) == 100, "the losers have left nothing"


def test_what_a_file_may_take_the_place_of(way: str, root: Path) -> None:
    path = root / "file"
    for over, found, expected in (
        ("nothing", None, b"new"),
        ("damaged", b"new", b"new"),
        ("damaged", b"bad", b"new"),
        ("damaged", b"longer than that", b"new"),
        ("anything", b"old", b"new"),
    ):
        path.unlink(missing_ok=True)
        if found is not None:
            path.write_bytes(found)
        inode = path.stat().st_ino if found == b"new" else None
        file = DurableFile(path, over=over)  # type: ignore[arg-type]
        file.write(b"new")
        file.commit()
        assert path.read_bytes() == expected and os.listdir(root) == ["file"]
        assert inode is None or path.stat().st_ino == inode, "the same bytes are there: they stay"


@pytest.mark.parametrize("over", ["nothing", "damaged", "anything"])
def test_what_took_another_ones_place_is_not_taken_back(root: Path, monkeypatch: pytest.MonkeyPatch, over: Any) -> None:
    """Its name may not be durable; but without it there would be nothing."""

    def refused(path: Path) -> None:
        raise OSError(errno.EIO, "refused")

    path = root / "file"
    if over != "nothing":
        path.write_bytes(b"old")
    file = DurableFile(path, over=over)
    file.write(b"new")
    monkeypatch.setattr(access, "sync_directory", refused)
    with pytest.raises(StorageError):
        file.commit()
    file.abort()
    assert os.listdir(root) == ([] if over == "nothing" else ["file"])
    assert over == "nothing" or path.read_bytes() == b"new"


def _start(way: str, root: Path, go: Any, found: Any) -> None:
    use(way)

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl.flock = no_locks
    go.wait(60)
    owner = DirectoryOwner(root, "me")
    found.put((owner.lineage, owner.session))
    owner.close()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WAYS)
def test_jobs_that_start_at_once_without_locks_have_one_lineage_and_one_owner(name: str, root: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        go, found = context.Event(), context.Queue()
        directory = root / str(attempt)
        jobs = [context.Process(target=_start, args=(name, directory, go, found)) for _ in range(4)]
        for job in jobs:
            job.start()
        go.set()
        known = [found.get(timeout=300) for _ in jobs]
        for job in jobs:
            job.join(60)
        assert len({lineage for lineage, _ in known}) == 1
        owner = DirectoryOwner.__new__(DirectoryOwner)
        owner.directory, owner._path = directory, directory / ".deeppart.lock"
        assert owner._read().session in {session for _, session in known}
