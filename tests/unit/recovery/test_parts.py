"""A part that is used where it lies: whether its bytes may have changed meanwhile is asked when they have been used."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart import access
from deeppart.codec.zstd import ZstdCodec
from deeppart.errors import CorruptFileError
from deeppart.mapped import lies_in_memory
from deeppart.part import FileSource, PartReader
from deeppart.plan.restart import Read, Source
from deeppart.recovery import CheckedPart


@pytest.fixture
def used(memory: Path) -> tuple[CheckedPart, Path]:
    """A local part on a tmpfs, checked, and its path."""
    config = deeppart.Config(
        persistent_dir=str(memory / "persistent"), local_dir=str(memory / "local"), compression="none"
    )
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint({"weight": torch.arange(50_000.0)}, 1).wait()
    (path,) = (memory / "local").glob("*/step-*/part-*")
    file = FileSource(path)
    reader = PartReader(file, where=str(path))
    source = Source("local", str(path), (0,), file.size, reader.index_digest)
    part = CheckedPart.of(file, Read(0, 0, source), reader.attempt, None)
    part.check()
    if not lies_in_memory(path):
        pytest.skip("there is no tmpfs")
    assert part.place is not None
    return part, path


def test_what_has_lost_its_name_may_have_changed(used: tuple[CheckedPart, Path]) -> None:
    part, path = used
    assert part.problem() is None
    path.rename(path.with_name("spare"))
    assert "removed or replaced while" in str(part.problem())
    path.write_bytes(path.with_name("spare").read_bytes())  # another file of that name is not the one
    assert "removed or replaced while" in str(part.problem())


def test_where_the_name_cannot_be_asked_for_the_digests_are(
    used: tuple[CheckedPart, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: Any) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    part, path = used
    monkeypatch.setattr(access, "lstat", lstat)
    assert part.problem() is None
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"not what it was")
    assert isinstance(part.problem(), CorruptFileError)


def test_what_was_damaged_before_it_was_encoded_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found when it is decoded, which is once: while the live state is being filled."""
    state = {"a": torch.arange(50_000.0), "b": torch.arange(50_000.0)}
    encode = ZstdCodec.encode

    def flipped(codec: ZstdCodec, raw: memoryview, room: memoryview | None = None) -> bytes:
        return encode(codec, memoryview(bytes(255 - each for each in bytes(raw))), room)

    with deeppart.Checkpointer(persistent_dir=str(tmp_path), compression="zstd") as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
        monkeypatch.setattr(ZstdCodec, "encode", flipped)
        checkpointer.checkpoint({**state, "b": state["b"] + 1}, 2).wait()
    monkeypatch.undo()
    live = {"a": torch.zeros(50_000), "b": torch.zeros(50_000)}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        with pytest.raises(deeppart.RestoreError, match=r"(?s)decoded.*build the state again.*older step") as caught:
            checkpointer.restore(live)
        assert "step 2" in str(caught.value)
        with pytest.warns(deeppart.DeeppartWarning, match="step 2 is in the directory too"):
            assert checkpointer.restore(live, step=1) == 1
    assert torch.equal(live["b"], state["b"])
