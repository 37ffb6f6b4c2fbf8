"""Where ranks that have a key do not have the same under it, or share memory: each keeps its own, or it is refused."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError, PerRankError
from tests.unit.sharded_states import restore, rows, same, save

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
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


def test_empty_containers_stay_where_they_are(tmp_path: Path) -> None:
    save(tmp_path, [{"a": 1}, {"a": 1, "k": {}, "l": []}], replicated="parts")
    live: list[dict[str, Any]] = [{"a": 0}, {"a": 0, "k": {}, "l": []}]
    assert restore(tmp_path, live) == 1
    assert live == [{"a": 1}, {"a": 1, "k": {}, "l": []}]


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
