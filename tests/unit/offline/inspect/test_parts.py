"""The parts of one step, each opened by itself: a damaged one is refused, and the others still serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.offline.inspect.choosing import choose_steps
from deeppart.offline.inspect.parts import StepFiles, own_spans, shared_spans
from tests.unit.cli_support import flip, forge, part_path


@pytest.fixture
def files(tmp_path: Path) -> StepFiles:
    forge(tmp_path, 1)
    (subject,) = choose_steps(tmp_path)
    assert subject.manifest is not None
    return StepFiles(subject.directory, subject.manifest, None)


def path_of(files: StepFiles, rank: int) -> Path:
    return part_path(files.directory.parent, 1, rank, 3)


def test_spans_are_shared_or_the_ranks_own(files: StepFiles) -> None:
    """Leaf 0 is shared by three ranks, 1 on rank 0, and 2 each rank's own."""
    for rank, shared in ((0, [0, 1]), (1, [0]), (2, [0])):
        with files.open(rank) as part:
            assert np.unique(shared_spans(part.reader)["leaf"]).tolist() == shared
            assert own_spans(part.reader)["leaf"].tolist() == [2]
            assert part.record.rank == rank and set(part.own.types) == {2}


@pytest.mark.parametrize("damage", ["cut", "longer", "header", "gone"])
def test_a_damaged_part_does_not_hide_the_others(files: StepFiles, damage: str) -> None:
    path = path_of(files, 1)
    if damage == "gone":
        path.unlink()
    elif damage == "header":
        flip(path, 3)
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else path.read_bytes() + b"x")
    words = {"cut": "truncated", "longer": "longer than it was written"}.get(damage, "part-00001")
    kind = StorageError if damage == "gone" else CorruptFileError
    with pytest.raises(kind, match=words), files.open(1):
        pass
    for rank in (0, 2):
        with files.open(rank) as part:
            assert len(part.reader.read_chunk(0)) > 0


def test_a_part_of_another_rank_in_its_place_is_refused(files: StepFiles) -> None:
    path_of(files, 1).write_bytes(path_of(files, 2).read_bytes())
    with pytest.raises(CorruptFileError), files.open(1):
        pass
