"""Storage that misbehaves on demand: what was chosen is refused, everything else goes through."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from tests.storage_faults import StorageFaults


def write(path: Path, data: bytes = b"bytes") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def test_operations_below_the_root_are_counted_and_no_others(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    with StorageFaults(root) as faults:
        write(root / "file")
        write(other / "file")
        os.stat(root)
        assert faults.log == [("open", "file"), ("write", "file"), ("close", "file")] and faults.refused == 0


@pytest.mark.parametrize("first", [0, 1, 2])
def test_one_operation_is_refused_and_the_others_are_not(tmp_path: Path, first: int) -> None:
    with StorageFaults(tmp_path) as faults:
        faults.refuse(first, errno.EDQUOT)
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            write(tmp_path / "file")
        assert faults.refused == 1
        write(tmp_path / "file")
        assert faults.refused == 1


def test_a_close_that_is_refused_has_given_the_descriptor_back(tmp_path: Path) -> None:
    with StorageFaults(tmp_path) as faults:
        descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        faults.refuse(0, errno.EIO, only=("close",))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.close(descriptor)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(descriptor)


class _Closing:
    """Closes a file when it is let go of."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _leave_to_the_collector(item: object) -> None:
    cycle = [item]
    cycle.append(cycle)


class _Collecting(StorageFaults):
    def clear(self) -> None:
        gc.collect()
        super().clear()


def test_descriptors_that_are_let_go_of_while_it_is_told_what_to_refuse(tmp_path: Path) -> None:
    """By a collection of garbage, in the same thread; a campaign hung there."""
    with _Collecting(tmp_path) as faults:
        _leave_to_the_collector(_Closing(tmp_path / "file"))
        telling = threading.Thread(target=lambda: faults.refuse(0, errno.EIO), daemon=True)
        telling.start()
        telling.join(20.0)
        assert not telling.is_alive()
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            write(tmp_path / "other")


def test_when_it_is_over_the_functions_are_the_systems_again(tmp_path: Path) -> None:
    before = os.open
    with pytest.raises(ZeroDivisionError), StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, count=None)
        raise ZeroDivisionError
    assert os.open is before
    write(tmp_path / "file")
