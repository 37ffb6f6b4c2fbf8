"""Values in parts of the state, as pipeline stages have them: saved by who has them, restored to who has a place."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, DeeppartError, PerRankError, StructureMismatchError
from deeppart.offline.inspect.contents import read_contents
from deeppart.offline.inspect.described import Value
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import restore, rows, same, save

FIRST, SECOND = torch.arange(20.0).view(5, 4), torch.arange(100.0, 112.0).view(4, 3)
#: Of each stage: the names of its layer's tensor and values, as a flattened optimizer's state dict has them.
LAYERS = {0: ("state.first.m", FIRST), 1: ("state.second.m", SECOND)}


def optimizer(stages: tuple[int, ...], rank: int, ranks: int, scale: float = 1.0) -> dict[str, Any]:
    """A flattened optimizer of some layers, of which each rank has a share of the rows."""
    found: dict[str, Any] = {}
    for stage in stages:
        name, whole = LAYERS[stage]
        found[name] = rows(whole * scale, rank, ranks)
        layer = name.split(".")[1]
        found[f"param_groups.{layer}.lr"] = 0.1 * (stage + 1) * scale
        found[f"param_groups.{layer}.betas"] = (0.9, 0.95 * scale)
        found[f"param_groups.{layer}.fused"] = None if scale == 1 else True
    return found


def stages(scale: float = 1.0) -> list[dict[str, Any]]:
    """Two stages of two ranks."""
    return [{"optim": optimizer((rank // 2,), rank % 2, 2, scale), "step": int(7 * scale)} for rank in range(4)]


def whole_rank(rank: int, ranks: int, scale: float = 1.0) -> dict[str, Any]:
    return {"optim": optimizer((0, 1), rank, ranks, scale), "step": int(7 * scale)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("error", deeppart.DeeppartWarning)  # nobody need be told of stages
        save(tmp_path, stages())
    return tmp_path


def test_stages_come_back_as_stages(saved: Path) -> None:
    live = stages(0.0)
    assert restore(saved, live) == 1
    assert all(map(same, live, stages()))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_as_a_whole_on_any_number_of_ranks(saved: Path, ranks: int) -> None:
    live = [whole_rank(rank, ranks, 0.0) for rank in range(ranks)]
    assert restore(saved, live) == 1
    assert all(same(each, whole_rank(rank, ranks)) for rank, each in enumerate(live))


def test_a_whole_comes_back_as_stages(tmp_path: Path) -> None:
    save(tmp_path, [whole_rank(rank, 3) for rank in range(3)])
    live = stages(0.0)
    assert restore(tmp_path, live) == 1
    assert all(map(same, live, stages()))


def test_plain_checkpoints_come_back_as_stages_and_stages_as_plain(saved: Path, tmp_path: Path) -> None:
    optim: dict[str, Any] = {"state.first.m": FIRST.clone(), "state.second.m": SECOND.clone()}
    optim |= {key: item for key, item in whole_rank(0, 1)["optim"].items() if "param" in key}
    save(tmp_path / "plain", [{"optim": optim, "step": 7}] * 2)
    live = stages(0.0)
    assert restore(tmp_path / "plain", live) == 1
    assert all(map(same, live, stages()))
    target: dict[str, Any] = {key: item * 0 if isinstance(item, torch.Tensor) else None for key, item in optim.items()}
    target |= {"param_groups.first.betas": (0.0, 0.0), "param_groups.second.betas": (0.0, 0.0)}
    assert restore(saved, [{"optim": target, "step": 0}]) == 1
    assert same(target, optim)


@pytest.mark.parametrize("rank", range(4))
def test_load_has_all_of_it_in_one_order(saved: Path, rank: int) -> None:
    loaded = deeppart.load(saved, rank=rank)
    assert same(loaded, whole_rank(0, 1))
    assert list(loaded["optim"]) == list(deeppart.load(saved)["optim"])
    assert deeppart.load(saved, keys="optim/param_groups.second.lr", rank=rank) == {
        "optim": {"param_groups.second.lr": 0.2}
    }


def test_values_deep_in_a_part_and_in_containers(tmp_path: Path) -> None:
    """Optimizers that count steps with Python's numbers."""

    def state(stage: int, rank: int, scale: float = 1.0) -> dict[str, Any]:
        name, whole = ("first", FIRST) if stage == 0 else ("second", SECOND)
        inner = {"m": rows(whole * scale, rank, 2), "step": int(3 * scale), "history": [1.5 * scale] * 3}
        return {"optim": {"state": {name: OrderedDict(inner)}}}

    save(tmp_path, [state(rank // 2, rank % 2) for rank in range(4)])
    live: list[dict[str, Any]] = [{"optim": {"state": {}}} for _ in range(2)]
    for rank, each in enumerate(live):
        for stage in (0, 1):
            each["optim"]["state"] |= state(stage, rank, 0.0)["optim"]["state"]
    assert restore(tmp_path, live) == 1
    for rank, each in enumerate(live):
        for stage in (0, 1):
            expected = state(stage, rank)["optim"]["state"]
            assert all(same(each["optim"]["state"][name], item) for name, item in expected.items())


def test_dicts_gain_values_that_nobody_has_a_place_for_and_what_nobody_saved_is_an_error(saved: Path) -> None:
    live = stages(0.0)
    for each in live[2:]:
        del each["optim"]["param_groups.second.lr"]
    assert restore(saved, live) == 1
    assert [each["optim"]["param_groups.second.lr"] for each in live] == [0.2] * 4
    live = stages(0.0)
    live[3]["optim"]["param_groups.second.weight_decay"] = 0.5
    with pytest.raises(DeeppartError, match="weight_decay"):
        restore(saved, live)


def differing() -> list[dict[str, Any]]:
    found = stages()
    found[2]["optim"]["param_groups.second.lr"] = math.nan
    found[3]["optim"]["param_groups.second.lr"] = -0.0
    return found


def test_values_that_ranks_of_a_part_did_not_hold_alike(tmp_path: Path) -> None:
    save(tmp_path, differing())
    live = stages(0.0)
    assert restore(tmp_path, live) == 1
    assert math.isnan(live[2]["optim"]["param_groups.second.lr"])
    assert math.copysign(1, live[3]["optim"]["param_groups.second.lr"]) == -1.0
    assert math.isnan(deeppart.load(tmp_path)["optim"]["param_groups.second.lr"])
    assert deeppart.load(tmp_path, rank=3)["optim"]["param_groups.second.lr"] == 0
    for ranks in (2, 4):
        live = [whole_rank(rank, ranks, 0.0) for rank in range(ranks)]
        with pytest.raises(PerRankError, match=r"optim/param_groups\.second\.lr"):
            restore(tmp_path, live)
        assert all(same(each, whole_rank(rank, ranks, 0.0)) for rank, each in enumerate(live))
    live = [whole_rank(rank, 2, 0.0) for rank in range(2)]
    assert restore(tmp_path, live, per_rank="rank0") == 1
    assert all(math.isnan(each["optim"]["param_groups.second.lr"]) for each in live)
    live = [whole_rank(rank, 2, 0.0) for rank in range(2)]
    assert restore(tmp_path, live, per_rank="drop") == 1
    for rank, each in enumerate(live):
        assert each["optim"].pop("param_groups.second.lr") == 0.0
        expected = whole_rank(rank, 2)
        del expected["optim"]["param_groups.second.lr"]
        assert same(each, expected)


def plain_stages(scale: float = 1.0) -> list[dict[str, Any]]:
    """The same without any sharded tensor: two ranks hold all of a stage."""
    found: list[dict[str, Any]] = []
    for rank in range(4):
        name, whole = LAYERS[rank // 2]
        layer: dict[str, Any] = {name: whole * scale, f"{name}.lr": 0.5 * (rank // 2) * scale}
        found.append({"model": layer, "step": int(7 * scale)})
    return found


@pytest.mark.parametrize("setting", ["parts", {"model/*": "parts"}])
def test_stages_without_any_sharded_tensor(tmp_path: Path, setting: Any) -> None:
    with pytest.raises(StructureMismatchError, match=r'"parts"'):
        save(tmp_path, plain_stages())
    with warnings.catch_warnings():
        warnings.simplefilter("error", deeppart.DeeppartWarning)
        save(tmp_path, plain_stages(), replicated=setting)
    for exchanged in (False, True):
        live = plain_stages(0.0)
        assert restore(tmp_path, [*live[2:], *live[:2]] if exchanged else live) == 1
        assert all(map(same, live, plain_stages()))
    whole = {"model": plain_stages()[0]["model"] | plain_stages()[2]["model"], "step": 7}
    assert same(deeppart.load(tmp_path), whole)
    for ranks in (1, 3):
        fresh = [{"model": {key: item * 0 for key, item in whole["model"].items()}, "step": 0} for _ in range(ranks)]
        assert restore(tmp_path, fresh) == 1
        assert all(same(each, whole) for each in fresh)


def test_a_plain_whole_comes_back_as_plain_stages_where_that_is_declared(tmp_path: Path) -> None:
    whole = {"model": plain_stages()[0]["model"] | plain_stages()[2]["model"], "step": 7}
    save(tmp_path, [whole, whole])
    live = plain_stages(0.0)
    assert restore(tmp_path, live, replicated={"model/*": "parts"}) == 1
    assert all(map(same, live, plain_stages()))
    live = plain_stages(0.0)
    assert restore(tmp_path, live) == 1
    assert all(same(each, whole) for each in live), "otherwise dicts gain what they lack"


def test_ranks_of_a_plain_stage_that_differ_are_told_and_saved_each(tmp_path: Path) -> None:
    states = plain_stages()
    states[3]["model"]["state.second.m"][1, 1] += 1
    with pytest.warns(deeppart.DeeppartWarning, match=r"state\.second\.m"):
        save(tmp_path, states, replicated="parts")
    live = plain_stages(0.0)
    assert restore(tmp_path, live) == 1
    assert all(map(same, live, states))
    with pytest.raises(PerRankError, match=r"state\.second\.m"):
        restore(tmp_path, [{"model": live[0]["model"] | live[2]["model"], "step": 0}])


def test_show_has_each_value_once(saved: Path, tmp_path: Path) -> None:
    found = [each for each in read_contents(saved).leaves() if isinstance(each, Value)]
    values = {each.path: each.value for each in found if each.per_rank is None}
    expected = {key: item for key, item in whole_rank(0, 1)["optim"].items() if "param" in key and "betas" not in key}
    assert {f"optim/{key}" for key in expected} <= values.keys() and len(values) == len(found)
    assert all(values[f"optim/{key}"] == item for key, item in expected.items())
    save(tmp_path / "differing", differing())
    own = [each for each in read_contents(tmp_path / "differing").leaves() if isinstance(each, Value) and each.per_rank]
    assert [(each.path, list(each.per_rank or ())) for each in own] == [("optim/param_groups.second.lr", [2, 3])]


@pytest.mark.parametrize("mark", [2, True, "1", None, [1]])
def test_strange_marks_are_refused(saved: Path, mark: Any) -> None:
    metas = read_metas(saved)
    decoded(metas)
    for meta in metas:
        for tree in meta["trees"]:
            assert tree[3:] == [1]
            tree[3:] = [mark]
    with pytest.raises(CorruptFileError, match="part"):
        decoded(metas)
