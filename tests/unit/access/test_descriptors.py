"""Descriptors: when they are closed, and what happens where there are no more."""

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
from deeppart.access import ReadFile, answers
from deeppart.errors import StorageError, lacks_resources
from deeppart.part import FileSource
from tests.descriptors import open_at


def test_a_file_that_is_being_read_is_closed_afterwards(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    before = open_at(tmp_path)
    file = ReadFile(tmp_path / "file", access.open_file)
    with file.descriptor() as descriptor:
        file.close()
        file.close()
        assert os.pread(descriptor, 9, 0) == b"there"
    assert open_at(tmp_path) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_into(0, memoryview(bytearray(1)))


# --- none left --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def exhausted(*, soft_only: bool) -> Iterator[None]:
    """No more descriptors for this process: its soft limit, or that of every process, is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
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
    assert caught.value.errno == errno.EMFILE and lacks_resources(caught.value)
    assert "may not open more than" in str(caught.value) and "ulimit -n" in str(caught.value)
    assert "fs.file-max" in answers(OSError(errno.ENFILE, "full"))["todo"]
    assert answers(OSError(errno.ENOENT, "none")) == {}
