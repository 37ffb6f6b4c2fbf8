"""A part in the memory of this node: the file that was read, or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import CorruptFileError, DeeppartError, StorageError
from deeppart.part import FileSource
from deeppart.recovery.parts import FileRange
from deeppart.recovery.tables import NodeCopy, _mapped

CONTENT = np.random.default_rng(5).integers(0, 256, 200_000, dtype=np.uint8)


@pytest.fixture
def place(tmp_path: Path) -> FileRange:
    path = tmp_path / "part"
    path.write_bytes(CONTENT.tobytes())
    with FileSource(path) as file:
        return FileRange(str(path), *file.identity, 64, 150_000, 0, is_on_a_node=True)


def test_the_stretch_of_the_file(place: FileRange) -> None:
    copy = _mapped(place, Path)
    assert (copy.raw == CONTENT[64:150_064]).all()
    assert (copy.byte_range(100, 4200) == CONTENT[164:4264]).all()
    assert len(copy.byte_range(7, 7)) == 0
    assert copy.problem() is None
    with pytest.raises(ValueError, match="read-only"):
        copy.raw[0] = 1
    copy = _mapped(replace(place, raw_start=1_000_000), Path)  # by the bytes of the part
    assert (copy.byte_range(1_000_100, 1_004_200) == CONTENT[164:4264]).all()
    target = np.zeros(300, dtype=np.uint8)
    copy.read_into(1_149_700, target)
    assert (target == CONTENT[149_764:150_064]).all()


def test_what_is_not_the_file_that_was_read_is_refused(place: FileRange) -> None:
    path = Path(place.path)
    other = path.with_name("other")
    other.write_bytes(CONTENT.tobytes())  # the same bytes even: nobody has checked them
    changes: list[Callable[[], object]] = [lambda: os.truncate(path, 1000), lambda: other.rename(path), path.unlink]
    for change in changes:
        change()
        with pytest.raises(DeeppartError):
            _mapped(place, Path)


def test_a_file_that_loses_its_name_while_it_is_used(place: FileRange) -> None:
    copy = _mapped(place, Path)
    Path(place.path).rename(place.path + ".retired")
    assert isinstance(copy.problem(), CorruptFileError)
    # On the persistent level files are removed, and never written over: who has one open still has its bytes.
    assert replace(copy, place=replace(place, is_on_a_node=False)).problem() is None
    assert (copy.byte_range(0, 150_000) == CONTENT[64:150_064]).all()


def _no_answer(self: FileSource) -> bool:
    raise StorageError("no answer")


def test_a_file_system_that_cannot_tell_whether_it_changed(place: FileRange, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rank that has read the file has its digests: its mates do not use the file, or use another source."""
    copy = _mapped(place, Path)
    monkeypatch.setattr(FileSource, "has_its_name", _no_answer)
    assert isinstance(copy.problem(), StorageError)
    with pytest.raises(StorageError, match="no answer"):
        _mapped(place, Path)


def test_bytes_that_are_gone_are_an_error_and_do_not_end_the_process(place: FileRange) -> None:
    copy: NodeCopy = _mapped(place, Path)
    with open(place.path, "r+b") as file:
        file.truncate(0)  # to touch them would be a SIGBUS
    with pytest.raises(StorageError, match="cannot read"):
        copy.byte_range(0, 4096)
