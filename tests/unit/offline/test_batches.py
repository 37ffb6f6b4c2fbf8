"""Leaves in batches, and those of a batch that are sound although others are not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from deeppart.errors import CorruptFileError, StorageError
from deeppart.offline import batches as module
from deeppart.offline.batches import batches, owner_of, read_sound, repeats
from deeppart.offline.find import find_step
from deeppart.offline.load import OpenCheckpoint
from tests.unit.cli_support import flip, make_state, part_path, save, save_states


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(files: ExitStack, root: Path) -> OpenCheckpoint:
    found, _ = find_step(root, None, None)
    return OpenCheckpoint(files, found.directory, found.manifest, signing=None)


def test_leaves_that_share_memory_are_in_one_batch(
    tmp_path: Path, files: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    checkpoint = opened(files, tmp_path)
    every = set(range(len(checkpoint.target.types)))
    assert list(batches(checkpoint, every)) == [every]
    monkeypatch.setattr(module, "BATCH_BYTES", 600)
    found = list(batches(checkpoint, every))
    assert sorted(leaf for batch in found for leaf in batch) == sorted(every)
    (alias,) = checkpoint.structure.aliases
    assert any({alias, owner_of(checkpoint, alias)} <= batch for batch in found)
    for batch in found:
        owners = {owner_of(checkpoint, leaf) for leaf in batch}
        assert len(owners) == 1 or sum(checkpoint.target.types[leaf].nbytes for leaf in owners) <= 600


def test_what_is_sound_is_read_although_a_chunk_is_damaged(tmp_path: Path, files: ExitStack) -> None:
    save(tmp_path, 1)
    flip(part_path(tmp_path, 1), 4096 + 1000)
    checkpoint = opened(files, tmp_path)
    every = set(range(len(checkpoint.target.types)))
    with pytest.raises(CorruptFileError):
        checkpoint.read(every)
    arrays, refused = read_sound(checkpoint, every)
    assert arrays.keys() | refused.keys() == every and not arrays.keys() & refused.keys()
    assert 1 <= len(refused) <= 2 and all(isinstance(error, CorruptFileError) for error in refused.values())
    noise = next(array for array in arrays.values() if not isinstance(array, torch.Tensor))
    assert noise.tobytes() == make_state()["noise"].tobytes()


def test_a_step_that_a_job_has_removed_is_no_damage(tmp_path: Path, files: ExitStack) -> None:
    frozen = torch.zeros(2_000_000)
    root = save_states(tmp_path, *({"frozen": frozen, "n": torch.full((9,), step)} for step in range(2)))
    checkpoint = opened(files, root)
    shutil.rmtree(checkpoint.directory)
    with pytest.raises(StorageError):
        read_sound(checkpoint, {0, 1})


def test_what_repeats_its_few_bytes(tmp_path: Path, files: ExitStack) -> None:
    one = torch.zeros(1, 8)
    root = save_states(tmp_path, {"a": one, "narrow": one.expand(4, 8), "wide": one.expand(1 << 30, 8)})
    checkpoint = opened(files, root)
    refusals = [repeats(checkpoint, leaf) for leaf in range(3)]
    assert [refusal is None for refusal in refusals] == [True, True, False]
    assert "path wide" in str(refusals[2])
