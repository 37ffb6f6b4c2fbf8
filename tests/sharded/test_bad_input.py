"""Shards that make no sense: an error on every rank in time, nothing is touched, and the next step works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mpi.torchrun import torchrun
from tests.sharded.layouts import SPLITS_ALONE

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not SPLITS_ALONE, reason="this torch splits tensors in a collective only"),
]

#: What the rank that has found it says of each.
SAVED = {
    "split in another way": "overlap",
    "another order of the mesh": "of 30 elements, 20 are in a shard",
    "another mesh": "overlap",
    "elements lack": "of 30 elements, 20 are in a shard",
    "overlapping shards": "overlap",
    "another shape": "float32[6, 4]",
    "another dtype": "float64[6, 5]",
    "partial sums": "partial sums",
    "partial sums on one rank": "partial sums",
    "a plain tensor on rank 0": "model/w",
    "a plain tensor on rank 2": "model/w",
    "a value": "model/w",
}
RESTORED = {
    "another shape": "float32[6, 4], of which this rank has 1 shards (live)",
    "another dtype": "float64[6, 5]",
    "partial sums": "partial sums",
    "a value": "int",
    "memory of another shard": "share some of their memory",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """One job of three ranks that tries everything."""
    directory = tmp_path_factory.mktemp("bad")
    return directory, torchrun(3, ["-m", "tests.sharded.bad_input_job", str(directory)], directory)


def check(of_ranks: list[dict[str, Any]], text: str) -> None:
    for each in of_ranks:
        assert each["typed"] and each["in_time"] and each["untouched"], each
    assert any(text in each["text"] for each in of_ranks), of_ranks
    assert any(each["error"] not in ("RemoteRankError", "CheckpointError") for each in of_ranks), of_ranks


@pytest.mark.parametrize("name", SAVED)
def test_it_is_not_saved(found: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    check([each["save"][name] for each in found[1]], SAVED[name])


@pytest.mark.parametrize("name", RESTORED)
def test_it_is_not_restored(found: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    check([each["restore"][name] for each in found[1]], RESTORED[name])


def test_ranks_that_have_only_a_part_save_nothing(found: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, of_ranks = found
    check([each["two"] for each in of_ranks[:2]], "of 30 elements, 20 are in a shard")
    assert not list(directory.glob("two/step-*"))


def test_every_next_step_was_saved_and_restored(found: tuple[Path, list[dict[str, Any]]]) -> None:
    _, of_ranks = found
    steps = list(range(1, len(SAVED) + len(RESTORED) + 2))
    assert [each["checked"] for each in of_ranks] == [steps] * 3
