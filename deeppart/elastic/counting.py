"""Ranks that make sure that they have the same shards, and count the samples of each if nobody has said."""

from __future__ import annotations

from typing import Any

import numpy as np

from deeppart.comm import rank_names
from deeppart.errors import ConfigError, RanksDisagreeError, RemoteRankError

from .ranks import Ranks
from .shards import ShardedDataset


def settle(dataset: ShardedDataset[Any], ranks: Ranks) -> None:
    """Once for a data set (collective): afterwards its lengths are known, and the same on all ranks.

    Each of R ranks counts every R-th shard. All of them raise if one does.
    """
    if dataset.agreed:
        return
    check_lanes(dataset, ranks.size)
    own, counted, failure = range(ranks.rank, len(dataset.shards), ranks.size), list[int](), None
    if dataset.lengths is None:
        try:
            counted = [_count(dataset, number) for number in own]
        except Exception as error:  # the other ranks wait for this one
            failure = error
    mine = _said(dataset) | {
        "counted": counted,
        "failed": None if failure is None else f"{type(failure).__name__}: {failure}",
    }
    everybody = ranks.gather(mine, "comparing the shards of a data set, and counting their samples")
    if failure is not None:
        raise failure
    _compare(everybody)
    for rank, other in enumerate(everybody):
        if other["failed"] is not None:
            raise RemoteRankError("a rank could not count samples", found=other["failed"], where=f"rank {rank}")
    if dataset.lengths is None:
        lengths = np.zeros(len(dataset.shards), np.int64)
        for rank, other in enumerate(everybody):
            lengths[rank :: ranks.size] = other["counted"]
        dataset.set_counted(lengths)
    dataset.agreed = True


def check_lanes(dataset: ShardedDataset[Any], ranks: int) -> None:
    """Refuse fewer lanes than ranks."""
    if dataset.lanes < ranks:
        raise ConfigError(
            "there are fewer lanes than ranks",
            expected=f"{ranks} lanes or more",
            found=str(dataset.lanes),
            todo="give ShardedDataset(..., lanes=) as many as the job will ever have ranks; it holds from the next pass"
            " on",
        )


def _count(dataset: ShardedDataset[Any], number: int) -> int:
    shard = dataset.shards[number]
    try:
        return sum(1 for _ in dataset.open_shard(shard))
    except Exception as error:
        error.add_note(f"while the samples of shard {dataset.name(shard)} were counted")
        raise


def _said(dataset: ShardedDataset[Any]) -> dict[str, Any]:
    return {
        "number": len(dataset.shards),
        "names": dataset.names,
        "lengths": dataset.lengths_digest,
        "lanes": dataset.lanes,
    }


def _compare(everybody: list[dict[str, Any]]) -> None:
    texts = {
        "number": "numbers of shards",
        "names": "names of shards, or another order of them",
        "lengths": "lengths of shards",
        "lanes": "numbers of lanes",
    }
    for key, text in texts.items():
        others = [rank for rank, each in enumerate(everybody) if each[key] != everybody[0][key]]
        if others:
            raise RanksDisagreeError(
                f"ranks were given different {text}",
                expected=f"{everybody[0][key]}, as on rank 0",
                found=str(everybody[others[0]][key]),
                where=rank_names(others),
                todo="sort what glob() finds; give names that are the same on all nodes (`name_of`)",
            )
