"""What the live state lacks, because other ranks have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.unit.sharded_states import restore, rows, save


def training(steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return {"m": model, "o": optimizer, "d": {"a": torch.ones(3) * steps, "n": steps}, "best": {}}


@pytest.mark.parametrize("replicated", ["auto", {"*": "parts"}])
def test_a_rank_that_has_not_trained_yet_gets_what_the_others_get(tmp_path: Path, replicated: Any) -> None:
    """As after a rank was replaced: the others have the state of their optimizers already."""
    states = [training(3) for _ in range(3)]
    save(tmp_path, states)
    live = [training(1), training(0), training(2)]
    if replicated == "auto":
        live[1]["d"] = {}
    assert restore(tmp_path, live, replicated=replicated) == 1
    for each in live:
        moments = each["o"].state_dict()["state"]
        assert [float(moments[number]["step"]) for number in moments] == [3.0, 3.0]
        assert torch.equal(moments[0]["exp_avg"], states[0]["o"].state_dict()["state"][0]["exp_avg"])
        assert each["d"]["n"] == 3 and torch.equal(each["d"]["a"], states[0]["d"]["a"])


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("setting", ["auto", "parts"])
def test_what_is_a_ranks_own_is_nobody_elses_though_a_live_dict_lacks_it(
    tmp_path: Path, setting: str, shards: bool
) -> None:
    def states(scale: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"rng": torch.full((2,), (10 + rank) * scale)} for rank in range(3)]
        return [each | ({"w": rows(torch.ones(3, 1), rank, 3)} if shards else {}) for rank, each in enumerate(found)]

    with pytest.warns(deeppart.errors.PerRankNotice, match="rng"):
        save(tmp_path, states())
    live = states(0)
    del live[0]["rng"]
    assert restore(tmp_path, live, replicated=setting) == 1
    assert [each["rng"].tolist() for each in live] == [each["rng"].tolist() for each in states()]
    live = states(0)[:2]
    del live[0]["rng"]
    assert restore(tmp_path, live, replicated=setting, per_rank="rank0") == 1
    assert all(each["rng"].tolist() == [10, 10] for each in live)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shards", [False, True])
def test_what_is_tied_to_a_leaf_of_another_rank_is_filled(tmp_path: Path, ranks: int, shards: bool) -> None:
    whole = torch.arange(12.0).view(4, 3)

    def tied(rank: int) -> dict[str, Any]:
        memory = rows(whole, rank, ranks) if shards else whole.clone()
        return {"emb": memory, "head": memory}

    save(tmp_path, [tied(rank) for rank in range(ranks)])
    live = [{"emb": whole * 0}, {"head": whole * 0}, {"emb": whole * 0}]
    assert restore(tmp_path, live, replicated="parts") == 1
    assert [list(each) for each in live] == [["emb"], ["head"], ["emb"]]
    assert all(torch.equal(array, whole) for each in live for array in each.values())
