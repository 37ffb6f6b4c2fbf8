"""Files in the page cache that are used where they lie: their pages stay, and an error of the device is an error."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StorageError
from deeppart.part import FileSource
from deeppart.recovery import load_part
from deeppart.storage import mapped
from deeppart.storage.mapped import LockedFile, file_system_of, pin

NBYTES = 9_000_001


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(np.random.default_rng(1).integers(0, 256, NBYTES, dtype=np.uint8).tobytes())
    return made


def pinned_file(path: Path) -> LockedFile:
    with FileSource(path) as source:
        found = pin(source, 0, source.size)
    if found is None:
        pytest.skip(f"files on {file_system_of(path)} cannot be locked in memory here")
    return found


def locked_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    return 1024 * int(line.split()[1])


def test_pages_are_there_and_stay(path: Path) -> None:
    before = locked_bytes()
    found = pinned_file(path)
    assert locked_bytes() - before >= NBYTES
    for offset, length in ((0, 1), (4097, 5_000_000), (NBYTES - 1, 1), (0, NBYTES)):
        found.bring(offset, length)
    assert bytes(found.memory) == path.read_bytes()
    del found
    assert locked_bytes() == before


def test_a_stretch_of_a_file_is_locked_alone(path: Path) -> None:
    start, stop = 1_000_003, 3_500_001  # in the middle of pages
    before = locked_bytes()
    with FileSource(path) as source:
        found = pin(source, start, stop)
    if found is None:
        pytest.skip(f"files on {file_system_of(path)} cannot be locked in memory here")
    assert stop - start <= locked_bytes() - before < stop - start + 2 * mmap.PAGESIZE
    found.bring(start, stop - start)
    found.bring(stop - 1, 1)
    assert bytes(found.memory) == path.read_bytes()[start:stop]


def test_an_error_of_the_device_is_an_error(path: Path) -> None:
    """Pages that are not there any more stand for pages that cannot be read: touching them would be a SIGBUS."""
    found = pinned_file(path)
    os.truncate(path, 1_000_000)
    found.bring(0, 1_000_000)
    with pytest.raises(StorageError, match="cannot read 10 bytes at 5000000") as caught:
        found.bring(5_000_000, 10)
    assert caught.value.errno == errno.EFAULT


def test_file_systems_in_memory_or_unknown_are_not_pinned(memory: Path, path: Path) -> None:
    data = memory / "file"
    data.write_bytes(bytes(5000))
    with FileSource(data) as source, FileSource("/proc/self/status") as other, FileSource(path) as removed:
        path.unlink()
        assert pin(source, 0, 5000) is None
        assert pin(other, 0, 5000) is None
        assert pin(removed, 0, 5000) is None


def test_file_systems_that_cannot_map_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: FileSource, start: int, stop: int) -> memoryview:
        raise StorageError("cannot map a part file", errno=errno.ENODEV, where=source.path)

    monkeypatch.setattr(FileSource, "mapped", refuse)
    restore_and_compare(tmp_path, in_place=False)


@pytest.mark.parametrize("how", ["limit", "library"])
def test_without_leave_to_lock_memory_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    class Refusing:
        def mlock2(self, *_: object) -> int:
            ctypes.set_errno(errno.ENOMEM)
            return -1

    monkeypatch.setattr(mapped, "_LIBC", Refusing() if how == "limit" else object())
    restore_and_compare(tmp_path, in_place=False)


def test_a_restore_uses_files_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    pinned_file(tmp_path / "file")
    restore_and_compare(tmp_path, in_place=True)


def restore_and_compare(tmp_path: Path, *, in_place: bool) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), compression="none", timeout=20.0)
    state = {"w": torch.rand(3_000_000), "b": torch.rand(1001).to(torch.bfloat16), "n": torch.arange(77)}
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint(state, 1).wait("persistent")
    rooms: list[int] = []
    opened = load_part.OpenedPart.load

    def load(part: load_part.OpenedPart, room: Any, *rest: Any) -> load_part.LoadedPart:
        rooms.append(part.room_bytes())
        return opened(part, room, *rest)

    live = {name: torch.zeros_like(value) for name, value in state.items()}
    gc.collect()  # what tests before this one have left behind is not to be released meanwhile
    before = locked_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_part.OpenedPart, "load", load)
        with deeppart.Checkpointer(config) as checkpointer:
            assert checkpointer.restore(live) == 1
    assert all(torch.equal(live[name], value) for name, value in state.items())
    assert [room == 0 for room in rooms] == [in_place]
    assert locked_bytes() == before
