"""Appending: the bytes arrive in order, whatever pieces they come in and however the system takes them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deeppart.errors import StorageError
from deeppart.storage.files import ALIGNMENT, AS_IT_LIES_BYTES, BLOCK_BYTES, Appending, block_memory


class Plain(Appending):
    """A file that is only appended to."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        super().__init__(path, path, direct=direct, limit=None)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0)
        self._fd, self._direct = os.open(path, flags, 0o600), direct

    def commit(self) -> None:
        self._flush()
        os.close(self._fd)

    def restart(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        os.close(self._fd)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("pieces", [[], [1], [ALIGNMENT, 1, BLOCK_BYTES], [5, AS_IT_LIES_BYTES * 2, 7]])
def test_all_of_it_in_order(tmp_path: Path, direct: bool, pieces: list[int]) -> None:
    file, whole = Plain(tmp_path / "file", direct=direct), b""
    for number, length in enumerate(pieces):
        data = block_memory(length)
        data[:] = bytes([number + 1]) * length
        file.write(data)
        whole += bytes(data)
    file.commit()
    assert (tmp_path / "file").read_bytes() == whole and file.nbytes == len(whole) and file.busy_s >= 0


def test_a_write_that_is_taken_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is written in another way: it is not aligned any more."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: min(len(data), ALIGNMENT + 1)]))
    file = Plain(tmp_path / "file", direct=False)
    data = os.urandom(10 * ALIGNMENT)
    file.write(data)
    file.commit()
    assert (tmp_path / "file").read_bytes() == data


def test_a_refusal_has_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    file = Plain(tmp_path / "file", direct=False)
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StorageError) as caught:
        file.write(b"x")
    assert caught.value.errno == errno.ENOSPC and caught.value.where == str(tmp_path / "file")
    file.abort()
