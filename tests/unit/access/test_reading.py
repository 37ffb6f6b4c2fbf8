"""Files to be read, of which only so many have a descriptor at a time."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.access import reading
from deeppart.access.reading import ReadFile, most_open


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at a time; none of those that other tests have left."""
    monkeypatch.setattr(reading, "most_open", lambda: 3)
    reading._recent.close_idle()


def files(directory: Path, count: int) -> list[ReadFile]:
    paths = [directory / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 10)
    return [ReadFile(str(path)) for path in paths]


def open_now() -> int:
    return len(os.listdir("/proc/self/fd"))


def read(file: ReadFile) -> bytes:
    with file.descriptor() as descriptor:
        return os.pread(descriptor, 1, 0)


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
