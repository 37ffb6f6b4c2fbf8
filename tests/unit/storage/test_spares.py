"""Files that are written over: only what is written now is in the new file, and none is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from deeppart.codec import Chooser
from deeppart.errors import StorageError
from deeppart.model import StepKey
from deeppart.part import PartSummary, step_name
from deeppart.save import Encoders, Encoding
from deeppart.save.growing_file import GrowingFile
from deeppart.storage import BLOCK_BYTES, DurableFile, NodeLevel
from deeppart.storage.spares import Recycled
from tests.storage_faults import StorageFaults

OLD = bytes(range(256)) * 40_000  # 10 MB: more than a block


SIZES = (0, 1, 4095, 4096, 4097, 100_000, BLOCK_BYTES - 1, BLOCK_BYTES + 1, len(OLD) - 1, len(OLD), len(OLD) + 5000)


@pytest.fixture(params=["memory", "disk"])
def root(request: pytest.FixtureRequest, memory: Path, tmp_path: Path) -> Path:
    """With mappings and without."""
    directory = memory if request.param == "memory" else tmp_path
    (directory / "step").mkdir()
    return directory


def add_spare(root: Path, data: bytes = OLD, name: str = "part-00000-of-00001.dpp") -> Recycled:
    recycled = Recycled(root, "me")
    recycled.folder.mkdir(exist_ok=True)
    (recycled.folder / name).write_bytes(data)
    return recycled


def fresh(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1_000_003, 1 << 30])
def test_only_what_is_written_now_is_in_the_file(root: Path, size: int, piece: int) -> None:
    recycled, data, path = add_spare(root), fresh(size), root / "step" / "part-00000-of-00001.dpp"
    file = DurableFile(path, recycled=recycled)
    assert os.listdir(recycled.folder) == [], "it was taken"
    for at in range(0, size, piece):
        file.write(data[at : at + piece])
    file.commit()
    assert path.read_bytes() == data and os.listdir(path.parent) == [path.name]


def test_a_follower_sees_nothing_of_what_was_there_before(root: Path) -> None:
    """The part is complete before it has been cut to its length."""
    recycled, data = add_spare(root), fresh(100_000)
    file = DurableFile(root / "step" / "part-00000-of-00001.dpp", recycled=recycled)
    relay = GrowingFile(file, Encoding(Chooser("none"), Encoders(0)))
    relay.write(data)
    relay.complete(cast(PartSummary, "all of it"))
    buffer = memoryview(bytearray(BLOCK_BYTES))
    assert relay.read_into(0, buffer) == len(data) and buffer[: len(data)] == data
    assert relay.read_into(len(data), buffer) == 0
    file.commit()
    relay.close()


def test_the_files_of_the_sessions_newest_retired_step_are_kept_and_only_those(root: Path) -> None:
    level = NodeLevel(root, "a" * 32, "local", "b" * 32)
    keys = [StepKey(9, "b" * 32, 0), StepKey(2, "b" * 32, 1), StepKey(3, "b" * 32, 2), StepKey(50, "c" * 32, 7)]
    for key in keys:
        directory = level.store.path(step_name(key))
        directory.mkdir()
        for name in ("part-00000-of-00001.dpp", ".part-00001-of-00002.dpp.tmp-1-0a1b", "notes.txt"):
            (directory / name).write_text(f"{key.step}")
    spares, theirs = (Recycled(level.store.root, session * 32).folder for session in "bc")
    for each in (spares, theirs):
        each.mkdir()
        (each / "part-00007-of-00008.dpp").touch()
    level.retire({keys[0], keys[1], keys[3]})
    assert os.listdir(spares) == ["part-00000-of-00001.dpp"] and (spares / "part-00000-of-00001.dpp").read_text() == "2"
    left = [os.listdir(level.store.path(step_name(key))) for key in keys]
    assert left[:2] + left[3:] == [["notes.txt"]] * 3, "not ours to remove"
    assert len(left[2]) == 3
    assert os.listdir(theirs) == ["part-00007-of-00008.dpp"], "another session's are never taken, and never added to"
    level.recycled.drop_foreign()
    assert not theirs.exists() and os.listdir(spares)
    (spares / "somebody's").touch()
    level.recycled.drop()
    assert os.listdir(spares) == ["somebody's"]


def test_a_refusal_leaves_no_old_bytes_under_a_parts_name(root: Path) -> None:
    path = root / "step" / "part-00000-of-00001.dpp"
    for number in range(200):
        recycled = add_spare(root)
        with StorageFaults(root) as faults:
            faults.refuse(number, 28)
            try:
                file = DurableFile(path, recycled=recycled)
                try:
                    file.write(b"new")
                    file.commit()
                except StorageError:
                    file.abort()
                    raise
            except StorageError:
                assert not path.exists()
            else:
                assert path.read_bytes() == b"new"
            refused = faults.refused
        path.unlink(missing_ok=True)
        if not refused:
            break
    assert 3 < number < 199
