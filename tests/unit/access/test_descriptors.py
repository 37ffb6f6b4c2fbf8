"""Files to be read, of which only so many have a descriptor at a time, and room for one more."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import ReadFile, answers, descriptors
from deeppart.access.descriptors import most_open
from deeppart.errors import StorageError, lacks_descriptors
from deeppart.part import FileSource


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at a time; none of those that other tests have left."""
    monkeypatch.setattr(descriptors, "most_open", lambda: 3)
    descriptors._recent.close_idle()


def files(directory: Path, count: int) -> list[ReadFile]:
    paths = [directory / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 10)
    return [ReadFile(path, access.open_file) for path in paths]


def open_now() -> int:
    return len(os.listdir("/proc/self/fd"))


def read(file: ReadFile) -> bytes:
    with file.descriptor() as descriptor:
        return os.pread(descriptor, 1, 0)


@pytest.mark.usefixtures("few")
def test_any_number_may_be_open(tmp_path: Path) -> None:
    before = open_now()
    opened = files(tmp_path, 20)
    for _ in range(2):
        assert [read(file) for file in opened] == [bytes([number]) for number in range(20)]
        assert open_now() == before + 3
    for file in opened:
        file.close()
        file.close()
    assert open_now() == before


@pytest.mark.usefixtures("few")
def test_another_file_of_that_name_is_not_read(tmp_path: Path) -> None:
    first, second, *_ = files(tmp_path, 8)
    (tmp_path / "new").write_bytes(b"other")
    os.replace(tmp_path / "new", tmp_path / "0")
    with pytest.raises(OSError, match=r"[Ss]tale") as caught:
        read(first)
    assert caught.value.errno == errno.ESTALE
    os.unlink(tmp_path / "1")
    with pytest.raises(FileNotFoundError):
        read(second)


@pytest.mark.usefixtures("few")
def test_what_is_being_read_is_not_closed(tmp_path: Path) -> None:
    before = open_now()
    first, *others = files(tmp_path, 10)
    with first.descriptor() as descriptor:
        for file in others:
            read(file)
        first.close()
        assert os.pread(descriptor, 1, 0) == b"\0"
        for file in others:
            file.close()
    assert open_now() == before


@pytest.mark.usefixtures("few")
def test_threads_share_them(tmp_path: Path) -> None:
    opened, wrong = files(tmp_path, 12), list[object]()

    def work() -> None:
        try:
            for turn in range(200):
                number = turn * 7 % 12
                if read(opened[number]) != bytes([number]):
                    wrong.append(number)
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not wrong
    for file in opened:
        file.close()


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
def test_fewer_where_the_limit_is_low() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for soft, most in ((1024, 256), (400, 100), (100_000, 256), (20, 8)):
        if hard == resource.RLIM_INFINITY or soft <= hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert most_open() == most


# --- none left --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def exhausted(*, soft_only: bool) -> Iterator[None]:
    """No more descriptors for this process: its soft limit, or that of every process, is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    descriptors._recent.close_idle()  # what other tests have left
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now() + 20, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.MonkeyPatch.context() as patch:
            if not soft_only:
                patch.setattr(resource, "setrlimit", lambda *_: (_ for _ in ()).throw(ValueError("not allowed")))
            yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    with exhausted(soft_only=True):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(access.open_file(path))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert access.names_in(tmp_path) == ["file"]


@pytest.mark.usefixtures("limit")
def test_what_is_not_being_read_gives_way_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    sources = [FileSource(tmp_path / "file") for _ in range(8)]
    low = (open_now(), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, low)
    assert access.lstat(tmp_path / "file").st_size == 5
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
    for source in sources:
        assert bytes(source.read_at(0, 5)) == b"there"
        source.close()


def test_an_error_names_the_limit_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    with exhausted(soft_only=False), pytest.raises(StorageError) as caught:
        FileSource(path)
    assert caught.value.errno == errno.EMFILE and lacks_descriptors(caught.value)
    assert "may not open more than" in str(caught.value) and "ulimit -n" in str(caught.value)
    assert "fs.file-max" in answers(OSError(errno.ENFILE, "full"))["todo"]
    assert answers(OSError(errno.ENOENT, "none")) == {}
