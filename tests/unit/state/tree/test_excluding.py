"""What ``exclude`` leaves out of checkpoints: nobody looks at it, and a restore leaves it as it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import ConfigError, DeeppartWarning, RestoreError, StateError, UnsupportedLeafError
from tests.unit.sharded_states import restore, rows, save

pytestmark = pytest.mark.usefixtures("working_directory")


class Adapted(nn.Module):
    """A frozen base and a small adapter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(64, 64)
        self.adapter = nn.Linear(64, 2)


class Counting:
    """An object with a state_dict() that counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def state_dict(self) -> dict[str, Any]:
        self.calls += 1
        return {"x": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing is restored")


def checkpointer(root: Path, exclude: Any) -> deeppart.Checkpointer:
    return deeppart.Checkpointer(persistent_dir=root, exclude=exclude, timeout=30.0)


def test_adapters_alone(tmp_path: Path) -> None:
    saved, live = Adapted(1), Adapted(2)
    base = live.base.weight.detach().clone()
    with checkpointer(tmp_path, "model/base.*") as ck:
        for step in (1, 2, 3):  # also where the state is known already
            with torch.no_grad():
                saved.adapter.weight += 1
            pending = ck.checkpoint({"model": saved, "epoch": step}, step)
        assert pending.report is not None
        state = {"model": live, "epoch": 0}
        assert ck.restore(state) == 3 and state["epoch"] == 3
    assert torch.equal(live.adapter.weight, saved.adapter.weight) and torch.equal(live.base.weight, base)
    found = deeppart.load(tmp_path)
    assert sorted(found["model"]) == ["adapter.bias", "adapter.weight"]


def test_without_the_setting_it_is_missing(tmp_path: Path) -> None:
    with checkpointer(tmp_path, "model/base.*") as ck:
        ck.checkpoint({"model": Adapted(1)}, 1)
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        with pytest.raises(deeppart.StateError, match="base"):
            ck.restore({"model": Adapted(2)})
        assert ck.restore({"model": Adapted(2)}, strict=False) == 1
        assert ck.restored is not None and ck.restored.missing == ("model/base.bias", "model/base.weight")


def test_what_is_left_out_may_be_anything_and_is_not_asked(tmp_path: Path) -> None:
    counting = Counting()
    live: dict[str, Any] = {"x": torch.zeros(2), "lock": threading.Lock(), "object": counting}
    live["meta"] = torch.ones(3, device="meta")
    with checkpointer(tmp_path, ["lock", "meta", "object"]) as ck:
        assert ck.restore(live) is None
        before = counting.calls
        ck.checkpoint(live | {"x": torch.ones(2)}, 1)
        assert counting.calls == before
        assert ck.restore(live) == 1
    assert live["x"].tolist() == [1, 1] and live["meta"].is_meta and deeppart.load(tmp_path).keys() == {"x"}


def test_it_does_not_come_back_from_a_checkpoint_that_has_it(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint({"a": torch.ones(2), "b": {"c": torch.ones(2), "d": 5}}, 1)
    live: dict[str, Any] = {"a": torch.zeros(2), "b": {"c": torch.zeros(2), "d": 0}}
    with checkpointer(tmp_path, ["b/c", "gone"]) as ck:
        assert ck.restore(live) == 1
    assert live["a"].all() and not live["b"]["c"].any() and live["b"]["d"] == 5
    with checkpointer(tmp_path, "b") as ck:
        assert ck.restore(live := {"a": torch.zeros(2)}) == 1 and live.keys() == {"a"}


def test_items_of_a_table_of_small_values(tmp_path: Path) -> None:
    table = {f"k{number}": float(number) for number in range(20)}
    with checkpointer(tmp_path, "table/k7") as ck:
        for step in (1, 2):
            ck.checkpoint({"table": table | {"k7": step}}, step)
        live = {"table": dict.fromkeys(table, -1.0)}
        assert ck.restore(live) == 2
    assert live["table"] == table | {"k7": -1.0}
    assert deeppart.load(tmp_path)["table"].keys() == table.keys() - {"k7"}


def test_a_state_that_changes_what_is_left_out_is_the_same_state(tmp_path: Path) -> None:
    """Nothing is compared or planned anew for it."""
    with checkpointer(tmp_path, "cache") as ck:
        for step, cache in enumerate([torch.ones(3), "text", {"a": [1]}, torch.ones(7, device="meta")], 1):
            ck.checkpoint({"x": torch.full((2,), step), "cache": cache}, step)
    assert deeppart.load(tmp_path)["x"].tolist() == [4, 4]


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("state", [{"x": [torch.ones(1), torch.ones(2)]}, {"x": (1, torch.ones(2))}, {"x": Pair(1, 2)}])
def test_an_item_that_leaves_a_hole_is_refused(tmp_path: Path, state: Any) -> None:
    path = "x/right" if isinstance(state["x"], Pair) else "x/1"
    with checkpointer(tmp_path, path) as ck, pytest.raises(UnsupportedLeafError, match="cannot be left out alone"):
        ck.checkpoint(state, 1)


def test_a_glob_that_matches_nothing_is_told_once(tmp_path: Path) -> None:
    with checkpointer(tmp_path, ["x", "misspelt"]) as ck:
        with pytest.warns(DeeppartWarning, match="exclude: 'misspelt' matches nothing"):
            ck.checkpoint({"x": 1, "y": 2}, 1)
        ck.checkpoint({"x": 1, "y": 2}, 2)


@pytest.mark.parametrize("exclude", [5, ["a", 5], [""], {"a": "b"}])
def test_what_is_no_glob_is_refused(tmp_path: Path, exclude: Any) -> None:
    with pytest.raises(ConfigError, match="exclude"):
        checkpointer(tmp_path, exclude)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_and_what_is_each_ranks_own(tmp_path: Path, ranks: int) -> None:
    def state(rank: int, count: int, scale: float) -> dict[str, Any]:
        whole = torch.arange(12.0).view(6, 2) * scale
        return {
            "kept": {"x": rows(whole, rank, count), "y": whole},
            "gone": {"x": rows(whole, rank, count), "own": rank},
        }

    save(tmp_path, [state(rank, 2, 1.0) for rank in range(2)], exclude="gone/*")
    live = [state(rank, ranks, 0.0) for rank in range(ranks)]
    restore(tmp_path, live, strict=False)
    for rank, each in enumerate(live):
        assert torch.equal(each["kept"]["x"], state(rank, ranks, 1.0)["kept"]["x"]) and each["kept"]["y"].any()
        assert not each["gone"]["x"].any() and each["gone"]["own"] == rank


@pytest.mark.parametrize("exclude", ["**", "*", ["model", "step", "?"]])
def test_a_checkpoint_of_nothing_is_refused(tmp_path: Path, exclude: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt"), exclude=exclude) as ck:
        for call in (lambda state: ck.checkpoint(state, 1), ck.prepare):
            with pytest.raises(StateError, match="exclude leaves nothing") as caught:
                call({"model": Adapted(0), "step": 3, "x": []})
            assert caught.value.found and caught.value.todo
    with pytest.raises(RestoreError):
        deeppart.load(tmp_path / "ckpt")


def test_what_any_rank_holds_is_a_checkpoint(tmp_path: Path) -> None:
    """Where ranks have other keys, all of one's may be left out."""
    states = [{"apart": {"frozen": torch.ones(3)}}, {"apart": {"frozen": torch.ones(3), "own": torch.ones(3)}}]
    save(tmp_path, states, replicated="parts", exclude="apart/frozen")
    assert list(deeppart.load(tmp_path)["apart"]) == ["own"]
