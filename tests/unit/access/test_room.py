"""Room for one more descriptor, where a process may not have more."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import refusals
from deeppart.access.refusals import advice, with_room
from deeppart.errors import StorageError, lacks_descriptors
from deeppart.part import FileSource


@contextlib.contextmanager
def exhausted(*, soft_only: bool) -> Iterator[None]:
    """No more descriptors for this process: its soft limit, or that of every process, is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        if not soft_only:
            refuse = pytest.MonkeyPatch()
            refuse.setattr(resource, "setrlimit", lambda *_: (_ for _ in ()).throw(ValueError("not allowed")))
        yield
    finally:
        if not soft_only:
            refuse.undo()
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def nothing_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have left files open that nobody reads now."""
    monkeypatch.setattr(refusals, "_GIVING_WAY", [])


@pytest.mark.usefixtures("nothing_gives_way")
def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    with exhausted(soft_only=True):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(access.open_file(path))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert access.names_in(tmp_path) == ["file"]


def test_what_is_not_being_read_gives_way_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    sources = [FileSource(tmp_path / "file") for _ in range(8)]
    with exhausted(soft_only=True):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert access.lstat(tmp_path / "file").st_size == 5
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    for source in sources:
        assert bytes(source.read_at(0, 5)) == b"there"
        source.close()


@pytest.mark.usefixtures("nothing_gives_way")
def test_an_error_names_the_limit_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    with exhausted(soft_only=False), pytest.raises(StorageError) as caught:
        FileSource(path)
    assert caught.value.errno == errno.EMFILE and lacks_descriptors(caught.value)
    assert "may not open more than" in str(caught.value) and "ulimit -n" in str(caught.value)


def test_other_errors_are_none_of_this(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        with_room(lambda: os.open(tmp_path / "none", os.O_RDONLY))
    assert advice(caught.value) == {} and "fs.file-max" in advice(OSError(errno.ENFILE, "full"))["todo"]
    assert not lacks_descriptors(StorageError("x", errno=errno.ENOENT)) and not lacks_descriptors(ValueError())
