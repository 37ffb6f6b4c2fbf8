"""Chunks are checked before they are used, in a file or in memory of our own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.offline import chunk_access
from deeppart.offline.chunk_access import ChunkAccess
from deeppart.offline.find import find_step
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.restore.scatter import LiveBox


def opened(files: ExitStack, directory: Path) -> OpenCheckpoint:
    chosen, _ = find_step(directory, 1, None)
    return OpenCheckpoint(files, chosen.directory, chosen.manifest, signing=None)


@pytest.mark.parametrize("where", ["in the file", "in memory of our own"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_chunk_is_what_was_saved(
    tmp_path: Path, compression: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_access, "lies_in_memory", lambda path: where == "in the file")
    monkeypatch.setattr(chunk_access, "pin", lambda *arguments: None)
    whole = torch.arange(1 << 21)
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression=compression) as checkpointer:
        checkpointer.checkpoint({"w": whole}, 1).wait()
    with ExitStack() as files:
        checkpoint = opened(files, tmp_path)
        reader, source = checkpoint._readers[0], checkpoint._sources[0]
        chunks = ChunkAccess(reader, source, may_share=True)
        found = []
        for chunk in range(len(reader.chunks)):
            chunks.check(chunk)
            found.append(np.array(chunks.data(chunk)))
        assert len(found) > 1 and torch.equal(torch.from_numpy(np.concatenate(found).view(np.int64)), whole)


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
