"""The local part changes, or cannot be read back, while it is being copied to the persistent level."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.codec import Chooser
from deeppart.errors import CheckpointError, CorruptFileError, StorageError
from deeppart.part import FileSource, PartReader
from deeppart.save import Encoders, Encoding, StagingLease, Workers
from deeppart.save import write as writing
from deeppart.save.growing_file import GrowingFile, SourceLostError
from deeppart.save.job import Staged
from deeppart.save.write import write_part
from deeppart.storage import DurableFile
from tests.states import difference
from tests.unit.save.parts import ATTEMPT, recoded, staged
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
PATIENCE_S = 20.0


def open_at(directory: Path, **settings: Any) -> deeppart.Checkpointer:
    levels: dict[str, Any] = {"persistent_dir": str(directory / "p"), "local_dir": str(directory / "l")}
    return deeppart.Checkpointer(**levels, timeout=PATIENCE_S, compression="none", **settings)


def state(step: int) -> dict[str, Any]:
    return {"x": torch.full((3_000_000,), step, dtype=torch.int32), "step": step}


def flipping(growing: GrowingFile, offset: int, buffer: memoryview, read: Callable[..., int]) -> int:
    count = read(growing, offset, buffer)
    if offset == 0:
        buffer[100_000] ^= 4
    return count


def refusing(growing: GrowingFile, offset: int, buffer: memoryview, read: Callable[..., int]) -> int:
    real = os.preadv

    def failing(*arguments: Any) -> int:
        raise OSError(errno.EIO, "the node's drive is failing")

    os.preadv = failing
    try:
        return read(growing, offset, buffer)
    finally:
        os.preadv = real


@pytest.fixture(params=[flipping, refusing], ids=["changed", "unreadable"])
def bad_copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to make every copy of a local part go wrong; again to end that."""
    read = GrowingFile.read_into
    active: list[bool] = []

    def read_into(growing: GrowingFile, offset: int, buffer: memoryview) -> int:
        return int(request.param(growing, offset, buffer, read)) if active else read(growing, offset, buffer)

    monkeypatch.setattr(GrowingFile, "read_into", read_into)
    return lambda: active.clear() if active else active.append(True)


def test_while_the_share_is_still_in_memory(
    memory: Path, monkeypatch: pytest.MonkeyPatch, bad_copy: Callable[[], None]
) -> None:
    """It is written from there, and the checkpoint is as good as any."""
    claimed = threading.Event()
    claim, commit = StagingLease.claim, DurableFile.commit

    def claim_and_tell(self: StagingLease) -> Any:
        staged = claim(self)
        claimed.set()
        return staged

    def commit_late(self: DurableFile) -> None:
        if memory / "l" in self.path.parents and self.path.name.startswith("part-"):
            assert claimed.wait(PATIENCE_S)
        commit(self)

    monkeypatch.setattr(StagingLease, "claim", claim_and_tell)
    monkeypatch.setattr(DurableFile, "commit", commit_late)
    bad_copy()
    with open_at(memory) as ck:
        for step in (1, 2, 3):
            claimed.clear()
            pending = ck.checkpoint(state(step), step)
            pending.wait(timeout=PATIENCE_S)
            pending.wait("local", timeout=PATIENCE_S)
            assert difference(state(step), deeppart.load(memory / "p")) is None
        assert ck.failures == 0


def test_when_memory_has_been_given_back(
    memory: Path, monkeypatch: pytest.MonkeyPatch, bad_copy: Callable[[], None]
) -> None:
    """The step is not committed; the local copy, the step before and the next checkpoint are not affected."""
    copy = writing.copy_part

    def copy_late(growing: GrowingFile, file: DurableFile, behind: Workers) -> str:
        wait_until(lambda: ck._pipeline.staging_is_free, PATIENCE_S)
        return copy(growing, file, behind)

    monkeypatch.setattr(writing, "copy_part", copy_late)
    monkeypatch.setattr(writing, "RETRY_PAUSES_S", (0.01, 0.01))
    with open_at(memory) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=PATIENCE_S)
        bad_copy()
        pending = ck.checkpoint(state(2), 2)
        with pytest.raises(CheckpointError, match=r"changed between being written and being copied|cannot be read"):
            pending.wait(timeout=PATIENCE_S)
        pending.wait("local", timeout=PATIENCE_S)
        assert difference(state(1), deeppart.load(memory / "p")) is None
        bad_copy()
        live = state(0)
        assert ck.restore(live) == 2, "the local part is sound: it was read badly"
        assert difference(state(2), live) is None
        ck.checkpoint(state(3), 3).wait(timeout=PATIENCE_S)
        assert difference(state(3), deeppart.load(memory / "p")) is None


def test_memory_is_not_given_back_while_the_local_part_is_written_from_it(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The persistent level fails first; the next checkpoint must not be copied over what is still being stored."""
    release, write = threading.Event(), DurableFile.write
    written: list[int] = []

    def write_late(self: DurableFile, buffer: memoryview | bytes) -> None:
        if self.path.parent.parent != memory / "p" and "step-000000000001-" in str(self.path) and written:
            assert release.wait(PATIENCE_S)
        written.append(len(buffer))
        write(self, buffer)

    def refused(*_: Any) -> DurableFile:
        raise StorageError("no space", errno=errno.ENOSPC, where=str(memory / "p"))

    monkeypatch.setattr(DurableFile, "write", write_late)
    with open_at(memory, on_busy="skip") as ck:
        monkeypatch.setattr(ck._session.persistent, "open_part", refused)
        first = ck.checkpoint(state(1), 1)
        wait_until(lambda: first.report.levels["persistent"].state == "failed", PATIENCE_S)
        with pytest.warns(deeppart.errors.BackgroundFailureWarning):
            assert ck.checkpoint(state(2), 2).skipped
        release.set()
        first.wait("local", timeout=PATIENCE_S)
        live = state(0)
        assert ck.restore(live) == 1 and difference(state(1), live) is None
        monkeypatch.undo()
        ck.checkpoint(state(3), 3).wait(timeout=PATIENCE_S)


def written(share: Staged, path: Path, compression: str, only: set[str] | None = None) -> GrowingFile:
    """A complete local part, as the flush sees it."""
    file = DurableFile(path)
    growing = GrowingFile(file, Encoding(Chooser(compression, only), Encoders(1)))
    growing.complete(write_part(share, growing, growing.encoding, ATTEMPT, 0))
    file.commit()
    return growing


def test_what_is_raw_is_encoded_and_the_rest_passed_on(tmp_path: Path) -> None:
    share = staged(("float32", 3_000_000), ("bfloat16", 700_000), ("float64", 100_000))
    growing = written(share, tmp_path / "local", "tensor", {"bfloat16"})
    local = PartReader(FileSource(tmp_path / "local"), where="local")
    reader = recoded(growing, share, Chooser("tensor", {"float32"}))
    codecs = {
        dtype.decode(): int(codec) for dtype, codec in zip(reader.chunks["dtype"], reader.chunks["codec"], strict=True)
    }
    assert codecs == {"float64": 0, "float32": 2, "bfloat16": 2}
    raw = b"".join(bytes(reader.read_chunk(i)) for i in range(len(reader.chunks)))
    assert raw == share.data.tobytes()
    assert (reader.chunks["raw_digest"] == local.chunks["raw_digest"]).all()
    growing.close()


def test_a_byte_that_changed_on_the_node_is_not_passed_on(tmp_path: Path) -> None:
    share = staged(("float32", 3_000_000))
    growing = written(share, tmp_path / "local", "none")
    with (tmp_path / "local").open("r+b") as file:
        file.seek(6 << 20)
        file.write(b"\x55\xaa\x55")
    with pytest.raises(CorruptFileError, match="chunk 1 of 3"):
        recoded(growing, share, Chooser("tensor"))
    with (tmp_path / "local").open("r+b") as file:
        file.truncate(5 << 20)
    with pytest.raises(SourceLostError, match="shorter"):
        recoded(growing, share, Chooser("tensor"))
    growing.close()
