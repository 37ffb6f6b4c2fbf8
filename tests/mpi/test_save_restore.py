"""Save on some ranks, restore on others: replicated and per-rank state, other world sizes, other nodes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.on_nodes import config
from tests.mpi.training_states import PER_RANK, restore, same, save

pytestmark = pytest.mark.mpi(min_size=4)


def test_every_rank_gets_its_own_back(run_on: Any, shared_path: Path) -> None:
    saved = run_on(2, save, shared_path)
    notices = saved[0][1][2]
    assert len(notices) == 1 and all(path in notices[0] for path in PER_RANK)
    assert not saved[1][1][2], "one rank speaks for all"
    for rank, (step, found, explanation) in enumerate(run_on(2, restore, shared_path)):
        assert step == 3
        assert same(saved[rank][0], found) == []
        assert explanation == ("step 3: 2 of 2 parts local; saved by 2 ranks",)
    assert set(same(saved[0][0], saved[1][0])) == PER_RANK


def tables(rank: int) -> dict[str, Any]:
    """Many rows that ranks share, others of which one row differs, and a configuration."""
    alike = [{"id": row, "loss": row / 7, "tags": ["a", f"t{row}"]} for row in range(300)]
    other = [[row, f"s{row}", None] for row in range(300)]
    other[200][0] = rank
    order = [{"a": row, "b": 1} if rank % 2 else {"b": 1, "a": row} for row in range(300)]
    return {
        "alike": alike,
        "other": other,
        "order": order,
        "longer": [(1, 2)] * (300 + rank),
        "counts": {word: [word, rank] for word in range(100 if rank else 300)},
        "config": {"rank": rank, "stages": [{"lr": 0.1, "seeds": [rank, 1]}] * 2},
        "split": [{"seed": rank, "id": row} for row in range(300)],
    }


def save_tables(comm: Any, directory: Path) -> list[str]:
    patterns = {"split/*/seed": "none", "*": "auto"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, replicated=patterns), comm) as ck:
            for step in (1, 2):
                ck.checkpoint(tables(comm.rank), step=step).wait()
    return [str(each.message) for each in caught if issubclass(each.category, deeppart.errors.PerRankNotice)]


def restore_tables(comm: Any, directory: Path) -> Any:
    live: dict[str, Any] = tables(7)
    rows = live["other"][3], live["alike"][3], live["split"][3]
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ck.restore(live, per_rank="strict" if comm.size == 2 else "drop")
    kept = rows[0] is live["other"][3] and rows[1] is live["alike"][3] and rows[2] is live["split"][3]
    return live, kept, [str(each.message) for each in caught]


def test_tables_are_compared_as_wholes_and_small_containers_item_by_item(run_on: Any, shared_path: Path) -> None:
    (notices, _) = run_on(2, save_tables, shared_path)
    per_rank = {path for text in notices for path in text.partition("now on: ")[2].partition("\n")[0].split(", ")}
    small = {"config/rank", "config/stages/0/seeds/0", "config/stages/1/seeds/0"}
    assert per_rank == small | {"counts", "longer", "other"}, notices
    for rank, (live, kept, told) in enumerate(run_on(2, restore_tables, shared_path)):
        assert live == tables(rank) and kept and not told
    for rank, (live, kept, told) in enumerate(run_on(3, restore_tables, shared_path)):
        assert len(told) == (rank == 0) and all("split/*/seed (300 paths)" in text for text in told), told
        mine, expected = tables(7), tables(0)
        assert live["alike"] == expected["alike"] and live["order"] == expected["order"] and kept
        assert live["other"] == mine["other"], "each rank's own, and dropped"
        assert live["config"]["stages"][0]["lr"] == 0.1 and live["config"]["rank"] == 7
        assert [row["id"] for row in live["split"]] == list(range(300))
