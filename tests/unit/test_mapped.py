"""Files used as memory: kept, given up, locked; and an error of the device is an error."""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import deeppart
from deeppart import mapped
from deeppart.errors import StorageError
from deeppart.mapped import (
    bytes_in_memory,
    file_memory,
    file_system_of,
    forget_all,
    lies_in_memory,
    memory_in_place,
    populate_pages,
)
from deeppart.part import FileSource
from deeppart.recovery import parts

NBYTES = 20_000_000  # more than two of the units in which pages are put in place


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    forget_all()
    yield
    forget_all()


@pytest.fixture
def path(memory: Path) -> Path:
    if not lies_in_memory(memory):
        pytest.skip("no file system in memory")
    made = memory / "file"
    made.write_bytes(bytes(NBYTES))
    return made


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR)


def test_a_file_with_holes_is_not_mapped(path: Path) -> None:
    """Its pages would have to be found when they are used: where there are none left, that ends the process."""
    os.truncate(path, 0)
    os.truncate(path, NBYTES)
    descriptor = opened(path)
    assert bytes_in_memory(descriptor) == 0 and file_memory(descriptor, 0, 100) is None
    os.close(descriptor)


def test_a_forked_process_does_not_hold_on_to_removed_files(path: Path) -> None:
    """As a loader of training data would, for hours."""
    descriptor = opened(path)
    assert file_memory(descriptor, 0, NBYTES) is not None
    os.close(descriptor)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child() -> None:
        there.send(len(mapped._kept.mappings))
        there.recv()

    process = context.Process(target=child, daemon=True)
    process.start()
    assert here.poll(30) and here.recv() == 0
    taken = [str(path) in line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()]
    taken += [str(path) in os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    here.send(None)
    process.join(30)
    assert process.exitcode == 0 and not any(taken)


LOCKED_BYTES = 9_000_001


@pytest.fixture
def disk_file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(np.random.default_rng(1).integers(0, 256, LOCKED_BYTES, dtype=np.uint8).tobytes())
    return made


def locked_memory(path: Path) -> npt.NDArray[np.uint8]:
    with FileSource(path) as source:
        found = memory_in_place(source, 0, source.size)
    if found is None:
        pytest.skip(f"files on {file_system_of(path)} cannot be locked in memory here")
    return np.frombuffer(found, dtype=np.uint8)


def locked_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    return 1024 * int(line.split()[1])


def test_an_error_of_the_device_is_an_error(disk_file: Path) -> None:
    """Pages that are not there any more stand for pages that cannot be read: touching them would be a SIGBUS."""
    found = locked_memory(disk_file)
    os.truncate(disk_file, 1_000_000)
    populate_pages(found[:1_000_000], str(disk_file))
    with pytest.raises(StorageError, match="cannot read 10 bytes") as caught:
        populate_pages(found[5_000_000:5_000_010], str(disk_file))
    assert caught.value.errno == errno.EFAULT


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
    locked_memory(tmp_path / "file")
    restore_and_compare(tmp_path, in_place=True)


def restore_and_compare(tmp_path: Path, *, in_place: bool) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), compression="none", timeout=20.0)
    state = {"w": torch.rand(3_000_000), "b": torch.rand(1001).to(torch.bfloat16), "n": torch.arange(77)}
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint(state, 1).wait("persistent")
    places: list[bool] = []
    check = parts.CheckedPart.check

    def checking(part: parts.CheckedPart, *rest: Any) -> None:
        places.append(part.place is not None)
        check(part, *rest)

    live = {name: torch.zeros_like(value) for name, value in state.items()}
    gc.collect()  # what tests before this one have left behind is not to be released meanwhile
    before = locked_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.CheckedPart, "check", checking)
        with deeppart.Checkpointer(config) as checkpointer:
            assert checkpointer.restore(live) == 1
    assert all(torch.equal(live[name], value) for name, value in state.items())
    assert places == [in_place]
    assert locked_bytes() == before
