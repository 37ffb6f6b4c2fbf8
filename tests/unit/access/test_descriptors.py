"""Files to be read, of which only so many have a descriptor at a time, and room for one more."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import ReadFile, answers, descriptors
from deeppart.errors import StorageError, lacks_descriptors
from deeppart.part import FileSource
from tests.descriptors import open_at


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


def read(file: ReadFile) -> bytes:
    with file.descriptor() as descriptor:
        return os.pread(descriptor, 1, 0)


@pytest.mark.usefixtures("few")
def test_any_number_may_be_open(tmp_path: Path) -> None:
    before = open_at(tmp_path)
    opened = files(tmp_path, 20)
    for _ in range(2):
        assert [read(file) for file in opened] == [bytes([number]) for number in range(20)]
        assert len(open_at(tmp_path)) == len(before) + 3
    for file in opened:
        file.close()
        file.close()
    assert open_at(tmp_path) == before


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


# --- none left --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def exhausted(*, soft_only: bool) -> Iterator[None]:
    """No more descriptors for this process: its soft limit, or that of every process, is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    descriptors._recent.close_idle()  # what other tests have left
    gc.collect()  # or it would give some back in the middle
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
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


def test_an_error_names_the_limit_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    with exhausted(soft_only=False), pytest.raises(StorageError) as caught:
        FileSource(path)
    assert caught.value.errno == errno.EMFILE and lacks_descriptors(caught.value)
    assert "may not open more than" in str(caught.value) and "ulimit -n" in str(caught.value)
    assert "fs.file-max" in answers(OSError(errno.ENFILE, "full"))["todo"]
    assert answers(OSError(errno.ENOENT, "none")) == {}
