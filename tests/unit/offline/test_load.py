"""``deeppart.load``: with keys, only what they name is read and checked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import ConfigError, CorruptFileError
from deeppart.offline.find import find_step
from deeppart.offline.reading import OpenCheckpoint
from deeppart.part import FileSource
from deeppart.state.restore.scatter import LiveBox

MIB = 1 << 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight leaves of 3 MiB, one of 30 MiB, thousands of small ones, nothing compressed."""
    directory = tmp_path_factory.mktemp("load")
    state: dict[str, Any] = {f"layer{i}": {"w": torch.full((3 * MIB,), i, dtype=torch.uint8)} for i in range(8)}
    state["long"] = torch.arange(30 * MIB // 4, dtype=torch.int32)
    state["small"] = [torch.full((40,), float(i)) for i in range(3000)]
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), compression="none")) as ck:
        ck.checkpoint(state, step=1).wait(timeout=200)
    return directory


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every read of a part file."""
    lengths: list[int] = []
    real = FileSource.read_into

    def read_into(self: FileSource, offset: int, buffer: memoryview) -> None:
        lengths.append(buffer.nbytes)
        real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", read_into)
    return lengths


def tables(directory: Path) -> int:
    """Bytes of a part that every reader reads: all but its chunks."""
    (part,) = directory.glob("*/part-*")
    return part.stat().st_size - 8 * 3 * MIB - 30 * MIB - 3000 * 160


def test_only_the_chunks_that_hold_what_matches_are_read(checkpoint: Path, bytes_read: list[int]) -> None:
    loaded = deeppart.load(checkpoint, keys="layer3/*")
    assert loaded.keys() == {"layer3"} and bool((loaded["layer3"]["w"] == 3).all())
    assert 3 * MIB <= sum(bytes_read) <= 3 * MIB + tables(checkpoint)
    bytes_read.clear()
    assert deeppart.load(checkpoint, keys="layer3")["layer3"]["w"][0] == 3
    assert 3 * MIB <= sum(bytes_read) <= 3 * MIB + tables(checkpoint), "of a container, too"
    bytes_read.clear()
    assert len(deeppart.load(checkpoint, keys=["long"])["long"]) == 30 * MIB // 4
    assert 30 * MIB <= sum(bytes_read) <= 30 * MIB + tables(checkpoint)
    bytes_read.clear()
    assert deeppart.load(checkpoint, keys=["small/17"])["small"][0][0] == 17
    assert sum(bytes_read) <= MIB + tables(checkpoint), "3,000 small leaves share a chunk"
    bytes_read.clear()
    deeppart.load(checkpoint)
    assert sum(bytes_read) >= 54 * MIB


def test_damage_elsewhere_does_no_harm(checkpoint: Path) -> None:
    (part,) = checkpoint.glob("*/part-*")
    data = bytearray(part.read_bytes())
    at = data.index(bytes([5]) * 1000) + 500_000  # in layer5
    data[at] ^= 1
    part.write_bytes(data)
    try:
        assert bool((deeppart.load(checkpoint, keys="layer4/*")["layer4"]["w"] == 4).all())
        for keys in (None, "layer5/w", ["layer*"]):
            with pytest.raises(CorruptFileError):
                deeppart.load(checkpoint, keys=keys)
    finally:
        data[at] ^= 1
        part.write_bytes(data)
    deeppart.load(checkpoint)


def test_what_is_mapped_is_checked_and_not_read(checkpoint: Path, bytes_read: list[int]) -> None:
    loaded = deeppart.load(checkpoint, mmap=True)
    assert sum(bytes_read) <= tables(checkpoint)
    assert torch.equal(loaded["long"], torch.arange(30 * MIB // 4, dtype=torch.int32))
    assert all(bool((leaf == number).all()) for number, leaf in enumerate(loaded["small"]))
    for number in range(8):
        loaded[f"layer{number}"]["w"].add_(1)
    again = deeppart.load(checkpoint, keys="layer*", mmap=True)
    assert all(bool((again[f"layer{number}"]["w"] == number).all()) for number in range(8)), "the file has not changed"
    assert bool((loaded["layer7"]["w"] == 8).all())


def test_damage_is_found_before_a_leaf_is_mapped(checkpoint: Path) -> None:
    (part,) = checkpoint.glob("*/part-*")
    data = bytearray(part.read_bytes())
    at = data.index(bytes([5]) * 1000) + 500_000  # in layer5
    part.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    try:
        assert bool((deeppart.load(checkpoint, keys="layer4/*", mmap=True)["layer4"]["w"] == 4).all())
        with pytest.raises(CorruptFileError, match="chunk"):
            deeppart.load(checkpoint, mmap=True)
    finally:
        part.write_bytes(data)


def test_what_does_not_lie_in_one_file_as_in_memory_is_read(tmp_path: Path, bytes_read: list[int]) -> None:
    torch.manual_seed(1)
    state = {"same": torch.randn(MIB), "zeros": torch.zeros(MIB), "new": torch.randn(MIB)}
    config = deeppart.Config(persistent_dir=str(tmp_path), compression="zstd", incremental=True, keep={"persistent": 2})
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait(timeout=200)
        state["new"] += 1
        checkpointer.checkpoint(state, step=2).wait(timeout=200)
    loaded = deeppart.load(tmp_path, mmap=True)
    assert sum(bytes_read) >= 4 * MIB
    assert loaded.keys() == state.keys() and all(torch.equal(state[name], loaded[name]) for name in state)


def test_a_signed_checkpoint_is_not_mapped(checkpoint: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 64)
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="mapped"):
        deeppart.load(checkpoint, sign_key_file=key, mmap=True)


def opened(files: ExitStack, directory: Path) -> OpenCheckpoint:
    return OpenCheckpoint(files, find_step(directory, 1, None).step)


@pytest.mark.parametrize("may_share", [True, False])
def test_a_damaged_chunk_is_refused_before_any_is_used(tmp_path: Path, may_share: bool) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        checkpointer.checkpoint({"w": torch.arange(1 << 21)}, 1).wait()
    (part,) = tmp_path.glob("step-*/part*")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with ExitStack() as files:
        checkpoint = opened(files, tmp_path)
        checkpoint._may_share = may_share
        live = torch.zeros(1 << 21, dtype=torch.int64)
        with pytest.raises(CorruptFileError, match="chunk"):
            checkpoint.read_boxes({0: [LiveBox.whole(live)]})
        assert not live.any()
