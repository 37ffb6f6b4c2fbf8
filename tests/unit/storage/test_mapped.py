"""Mapped files of a file system in memory: what is kept, and when it is given up."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deeppart.storage import mapped
from deeppart.storage.mapped import bytes_in_memory, file_memory, forget_all, forget_removed, lies_in_memory

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


def test_what_is_written_to_the_memory_is_in_the_file(path: Path) -> None:
    descriptor = opened(path)
    there = file_memory(descriptor, NBYTES - 1000, 1000)
    assert there is not None and there.size == 1000
    there[:] = 7
    os.close(descriptor)
    assert path.read_bytes() == bytes(NBYTES - 1000) + b"\7" * 1000


def test_a_mapping_is_kept_while_names_and_descriptors_change(path: Path) -> None:
    descriptor = opened(path)
    first = file_memory(descriptor, 0, 100)
    os.close(descriptor)
    path.rename(path.with_name("other"))
    descriptor = opened(path.with_name("other"))
    again = file_memory(descriptor, 0, 100)
    assert first is not None and again is not None and np.shares_memory(first, again)
    os.close(descriptor)


def test_memory_stays_valid_when_its_mapping_is_given_up(path: Path) -> None:
    descriptor = opened(path)
    there = file_memory(descriptor, 0, NBYTES)
    assert there is not None
    there[:] = 3
    path.unlink()
    forget_removed()
    assert not mapped._kept.mappings and int(there.sum()) == 3 * NBYTES
    os.close(descriptor)


def test_a_longer_file_is_mapped_anew_and_a_shorter_one_not_beyond_its_end(path: Path) -> None:
    descriptor = opened(path)
    assert file_memory(descriptor, 0, NBYTES) is not None
    os.pwrite(descriptor, b"x" * 5000, NBYTES)
    longer = file_memory(descriptor, NBYTES, 5000)
    assert longer is not None and longer.tobytes() == b"x" * 5000
    os.ftruncate(descriptor, 1000)
    assert file_memory(descriptor, 0, 1001) is None and file_memory(descriptor, 0, 0) is None
    os.pwrite(descriptor, bytes(NBYTES), 0)
    grown = file_memory(descriptor, 0, NBYTES)
    assert grown is not None and not grown.any()
    os.close(descriptor)


def test_a_file_with_holes_is_not_mapped(path: Path) -> None:
    """Its pages would have to be found when they are used: where there are none left, that ends the process."""
    os.truncate(path, 0)
    os.truncate(path, NBYTES)
    descriptor = opened(path)
    assert bytes_in_memory(descriptor) == 0 and file_memory(descriptor, 0, 100) is None
    os.close(descriptor)


def test_a_file_on_a_disk_is_not_mapped(tmp_path: Path) -> None:
    if lies_in_memory(tmp_path):
        pytest.skip("the temporary directory lies in memory")
    (tmp_path / "file").write_bytes(bytes(1000))
    descriptor = opened(tmp_path / "file")
    assert bytes_in_memory(descriptor) == 0 and file_memory(descriptor, 0, 100) is None
    os.close(descriptor)


def test_no_room_for_a_mapping_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    descriptor = opened(path)
    assert file_memory(descriptor, 0, 100) is None
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
