"""What all ranks had together: whole tensors, and parts of a state as pipeline stages have them; or each its own."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, DeeppartError, PerRankError, StructureMismatchError
from deeppart.model import Division
from deeppart.offline.inspect.contents import Value, read_contents
from deeppart.state.document.global_state import gather_global_state
from deeppart.state.document.structure import Structure
from deeppart.state.tree.ties import Alias
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import restore, rows, same, save

pytestmark = pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")

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


def test_load_has_all_of_it_in_one_order(saved: Path) -> None:
    for rank in range(4):
        loaded = deeppart.load(saved, rank=rank)
        assert same(loaded, whole_rank(0, 1))
        assert list(loaded["optim"]) == list(deeppart.load(saved)["optim"])
        found = deeppart.load(saved, keys="optim/param_groups.second.lr", rank=rank)
        assert found == {"optim": {"param_groups.second.lr": 0.2}}


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
    found = [each for each in read_contents(saved).leaves if isinstance(each, Value)]
    values = {each.path: each.value for each in found if each.per_rank is None}
    expected = {key: item for key, item in whole_rank(0, 1)["optim"].items() if "param" in key and "betas" not in key}
    assert {f"optim/{key}" for key in expected} <= values.keys() and len(values) == len(found)
    assert all(values[f"optim/{key}"] == item for key, item in expected.items())
    save(tmp_path / "differing", differing())
    own = [each for each in read_contents(tmp_path / "differing").leaves if isinstance(each, Value) and each.per_rank]
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


WHOLE = torch.arange(20.0).view(5, 4)


def test_what_is_declared_per_rank_is_no_part(tmp_path: Path) -> None:
    """Other ranks' values would stand for those that a rank lacks."""

    def state(rank: int, scale: int = 1) -> dict[str, Any]:
        return {"w": rows(WHOLE * scale, rank, 2), f"worker{rank}": 17 * scale + rank}

    save(tmp_path, [state(0), state(1)], replicated={"worker*": "none"})
    live = [state(0, 0), state(1, 0)]
    assert restore(tmp_path, live) == 1
    assert all(map(same, live, [state(0), state(1)]))
    with pytest.raises(PerRankError, match="worker0"):
        restore(tmp_path, [{"w": rows(WHOLE, 0, 1), "worker0": 0}])
    assert deeppart.load(tmp_path).keys() == {"w", "worker0"}


#: What two ranks of one part have, and no tree can have both of.
UNLIKE: dict[str, tuple[Any, Any]] = {
    "lists of other lengths": ([1, 2], [1, 2, 3]),
    "a run and a short list": (list(range(10)), [0, 1, 2]),
    "None and a dict": (None, {"x": 2}),
    "None and a tensor": (None, torch.ones(1)),
    "a text and a dict": ("s", {"x": 2}),
    "tuple and list": ((1, 2), [1, 2]),
    "dict and OrderedDict": ({"x": 1}, OrderedDict(y=1)),
    "OrderedDicts in another order": (OrderedDict(c=1, b=2), OrderedDict(b=2, c=1)),
    "deep below": ({"a": {"b": [1]}}, {"a": {"b": [1, 2]}, "c": 3}),
    "beside an array of one's own": ({"v": 8}, {"v": 9, "n": np.ones(2)}),
}


def zeros(item: Any) -> Any:
    """The same structure, with other content."""
    if isinstance(item, dict):
        return type(item)((key, zeros(each)) for key, each in item.items())
    if isinstance(item, (list, tuple)):
        return type(item)(map(zeros, item))
    return item * 0 if isinstance(item, (int, torch.Tensor, np.ndarray)) else item


def test_ranks_are_compared_with_all_that_others_have(tmp_path: Path) -> None:
    """The first of a part has nothing of what the second and the third differ in."""
    items: list[Any] = [{"x": 0}, {"n": [1, 2]}, {"n": [1, 2, 3]}]
    states = [{"a": 1}, *({"a": 1, "k": item} for item in items)]
    save(tmp_path, states, replicated="parts")
    live = [zeros(each) for each in states]
    assert restore(tmp_path, live) == 1
    assert live == states


@pytest.mark.sweep(2, kinds=("name",))
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", UNLIKE)
def test_where_one_tree_cannot_have_both_each_rank_keeps_its_own(tmp_path: Path, name: str, shards: bool) -> None:
    def states(items: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"a": 1}, *({"a": 1, "k": item} for item in items)]
        return [each | ({"w": rows(WHOLE, rank, 3)} if shards else {}) for rank, each in enumerate(found)]

    saved = states(UNLIKE[name])
    save(tmp_path, saved, replicated="auto" if shards else "parts")
    live = states(map(zeros, UNLIKE[name]))
    assert restore(tmp_path, live) == 1
    for rank, each in enumerate(live):
        assert repr(each.get("k")) == repr(saved[rank].get("k"))
        assert repr(deeppart.load(tmp_path, rank=rank).get("k")) == repr(saved[rank].get("k"))
    with pytest.raises(PerRankError, match="k"):
        restore(tmp_path, [{"a": 0, "k": zeros(UNLIKE[name][1])}])


@pytest.mark.parametrize("worker", [17, torch.full((2,), 17)], ids=["value", "tensor"])
def test_what_is_declared_per_rank_inside_of_a_part_makes_it_the_ranks_own(tmp_path: Path, worker: Any) -> None:
    rules = {"k/worker": "none", "*": "parts"}
    save(tmp_path, [{"a": 1}, {"a": 1, "k": {"worker": worker, "x": 5}}], replicated=rules)
    live = [{"a": 0}, {"a": 0, "k": {"worker": worker * 0, "x": 0}}]
    assert restore(tmp_path, live) == 1
    assert same(live[1], {"a": 1, "k": {"worker": worker, "x": 5}})
    with pytest.raises(PerRankError, match="k"):
        restore(tmp_path, [{"a": 0, "k": {"worker": worker * 0, "x": 0}}])


RANK0: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "below a part": ([{"k": {"best": 1, "x": 5}}, {"y": 2}], {"*best": "rank0", "*": "parts"}),
    "a tensor": ([{"k": {"best": torch.ones(1), "x": 5}}, {"y": 2}], {"*best": "rank0", "*": "parts"}),
    "in lists of other lengths": ([{"k": [{"best": 1, "x": 5}]}, {"k": []}], {"*best": "rank0"}),
    "below what is per rank": ([{"k": {"best": 1}, "b": 1}, {"b": 1}], {"k/best": "rank0", "k": "none"}),
    "where rank 0 has nothing": ([{"a": 1}, {"a": 1, "k": {"best": 1}}], {"*best": "rank0", "*": "parts"}),
}


@pytest.mark.parametrize("name", RANK0)
def test_what_is_rank_0s_below_a_cut_is_saved_with_what_it_is_in(tmp_path: Path, name: str) -> None:
    states, rules = RANK0[name]
    save(tmp_path, states, replicated=rules)
    live = [zeros(each) for each in states]
    assert restore(tmp_path, live, replicated=rules) == 1
    assert [repr(each) for each in live] == [repr(each) for each in states]


def test_keys_that_are_one_for_a_dict_are_no_parts(tmp_path: Path) -> None:
    for keys in ((1, True, 1.0), (0, 0, False)):
        with pytest.raises(DeeppartError, match="structure differs between ranks"):
            save(tmp_path, [{"d": {key: "x"}} for key in keys], replicated="parts")


def test_dropped_tuples_are_kept_as_a_whole(tmp_path: Path) -> None:
    """Half of a live tuple and half of a saved one are neither."""
    betas = [(0.9, 0.1), (0.9, 0.2)]
    save(tmp_path, [{"a": 1}, *({"a": 1, "k": {"betas": each}} for each in betas)], replicated="parts")
    live: list[dict[str, Any]] = [{"a": 0, "k": {"betas": (0.5, 0.6)}}]
    assert restore(tmp_path, live, per_rank="drop") == 1
    assert live == [{"a": 1, "k": {"betas": (0.5, 0.6)}}]


ORDERED: list[list[dict[str, Any]]] = [
    [OrderedDict(b=1, c=2), OrderedDict(b=1, a=3, c=2)],
    [OrderedDict(b=1, c=2), OrderedDict(z=1, y=3)],
    [OrderedDict(z=1, y=3), OrderedDict(b=1, c=2), OrderedDict(c=2, y=3, a=4)],
    [OrderedDict(weight=1), OrderedDict(weight=1, bias=2)],
]


@pytest.mark.parametrize("dicts", ORDERED, ids=repr)
def test_ordered_dicts_keep_each_ranks_order(tmp_path: Path, dicts: list[dict[str, Any]]) -> None:
    save(tmp_path, [{"o": each} for each in dicts], replicated="parts")
    live = [{"o": zeros(each)} for each in dicts]
    assert restore(tmp_path, live, replicated="parts") == 1
    assert [list(each["o"].items()) for each in live] == [list(each.items()) for each in dicts]
    loaded = [deeppart.load(tmp_path, rank=rank)["o"] for rank in range(len(dicts))]
    assert all(each == loaded[0] for each in loaded)
    for each in dicts:
        assert [key for key in loaded[0] if key in each] == list(each)


def test_a_tied_tensor_that_only_some_ranks_have_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    """Its restore into the same state would be."""
    both, grid = torch.ones(4), torch.ones(2, 3)
    for alone in ({"head": both}, {"grid": grid, "row": grid[0]}):
        states: list[dict[str, Any]] = [{"emb": torch.ones(4)}, {"emb": both, **alone}]
        with pytest.raises(DeeppartError, match="leave one of them out"):
            save(tmp_path, states, replicated="parts")
    tied = torch.ones(3)
    save(tmp_path, [{"b": 1}, {"b": 1, "emb": tied, "head": tied}], replicated="parts")
    zero = torch.zeros(3)
    live: list[dict[str, Any]] = [{"b": 0}, {"b": 0, "emb": zero, "head": zero}]
    assert restore(tmp_path, live) == 1 and zero.all()


NUMBERS = torch.arange(7 * 4).view(7, 4)


def structure_of(root: Path, states: Sequence[Any]) -> Structure:
    """The structure that all ranks share."""
    save(root, states)
    documents, _ = decoded(read_metas(root))
    assert documents[0].structure is not None
    return documents[0].structure


def test_tied_tensors_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        mine = rows(NUMBERS, rank, 2)
        states.append({"head": mine, "embed": mine})
    structure = structure_of(tmp_path, states)
    assert structure.paths() == [("embed",), ("head",)], "in the order of their keys"
    assert structure.aliases == {1: Alias(0, 0, (4, 1))}
    assert structure.divisions == dict.fromkeys((0, 1), Division((7, 4), (range(0, 7, 4), range(0, 4, 4))))
    loaded = deeppart.load(tmp_path)
    assert loaded["head"].data_ptr() == loaded["embed"].data_ptr() and torch.equal(loaded["head"], NUMBERS)


def test_those_that_are_tied_on_some_ranks_only_are_saved_for_themselves(tmp_path: Path) -> None:
    first, second = rows(NUMBERS, 0, 2), rows(NUMBERS, 1, 2)
    states = [{"head": first, "embed": first}, {"head": second, "embed": rows(NUMBERS + 1, 1, 2)}]
    assert structure_of(tmp_path, states).aliases == {}
    loaded = deeppart.load(tmp_path)
    assert loaded["head"].data_ptr() != loaded["embed"].data_ptr()
    assert torch.equal(loaded["head"], NUMBERS)
    assert torch.equal(loaded["embed"], torch.cat([NUMBERS[:4], NUMBERS[4:] + 1]))


def test_one_tensor_at_two_paths_or_at_none_is_refused(saved: Path) -> None:
    documents, _ = decoded(read_metas(saved))
    structure = documents[0].structure
    assert structure is not None and len(structure.placeless) == 2
    gather_global_state(structure, documents, "step 1").check(structure, "step 1")
    moved = replace(documents[1], trees=tuple(replace(tree, path=("optim", "other")) for tree in documents[1].trees))
    with pytest.raises(CorruptFileError, match="stands at two paths") as caught:
        gather_global_state(structure, [documents[0], moved, *documents[2:]], "step 1")
    assert "state.first.m" in str(caught.value) and "optim/other" in str(caught.value)
    with pytest.raises(CorruptFileError, match="stands in no tree"):
        gather_global_state(structure, documents[:2], "step 1").check(structure, "step 1")
