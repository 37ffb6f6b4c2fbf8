"""What a list of shards must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeppart.elastic import ShardedDataset
from deeppart.errors import ConfigError


def made(shards: list[Any], lengths: Any = None, **options: Any) -> ShardedDataset[Any]:
    return ShardedDataset(shards, lambda shard: [shard], lengths, **options)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([1], "shape"),
        ([1, 2, 3], "shape"),
        ([1, -2], "-2 for shard b"),
        ([1.0, 2.0], "float64"),
        ([[1, 2]], "shape"),
        ([2**62, 1], "4,611,686,018,427,387,905"),
    ],
)
def test_impossible_lengths_are_named(lengths: Any, found: str) -> None:
    with pytest.raises(ConfigError, match="impossible lengths") as caught:
        made(["a", "b"], lengths)
    assert found in str(caught.value)


def test_no_shards_and_impossible_lanes_are_named() -> None:
    with pytest.raises(ConfigError, match="no shards"):
        made([])
    for lanes in (0, True, 1.5):
        with pytest.raises(ConfigError, match="lanes"):
            made(["a"], lanes=lanes)


@pytest.mark.parametrize("shards", [iter(["a"]), {"a"}, {"a": 1}, "data/a"])
def test_what_is_no_list_of_shards_is_named(shards: Any) -> None:
    with pytest.raises(ConfigError, match="not a list"):
        made(shards)


def test_lengths_may_be_given_or_not() -> None:
    data = made(["a", "b"], [3, 4])
    assert data.samples == 7 and data.lengths is not None and data.lengths.dtype == np.int64 and data.counted is None
    assert made(["a"]).samples is None


def test_names_tell_lists_apart() -> None:
    names = {made(each).names for each in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", "c"], ["a", "b\udcff"])}
    assert len(names) == 5
    moved = [Path("/old/x/a.tar"), Path("/new/a.tar")]
    assert len({made([path]).names for path in moved}) == 2
    assert len({made([path], name_of=lambda path: path.name).names for path in moved}) == 1


def test_names_are_texts() -> None:
    assert made([3, 4], name_of=lambda shard: shard).names == made(["3", "4"]).names
