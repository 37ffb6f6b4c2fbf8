"""Objects and values that ranks do not have alike: saved per rank, or refused by name, as other containers are."""

from __future__ import annotations

import argparse
import collections
import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from tests.features.script_files import bits
from tests.features.script_values import Phase, Plan, Settings
from tests.unit.sharded_states import restore, save

DIFFERING: dict[str, Callable[[int], Any]] = {
    "sets": lambda rank: {rank, "a"},
    "enums": lambda rank: [Phase.WARMUP, Phase.TRAIN][rank],
    "paths": lambda rank: pathlib.Path(f"/scratch/{rank}"),
    "lengths of deques": lambda rank: collections.deque([torch.ones(2)] * (rank + 1), maxlen=4),
    "windows": lambda rank: collections.deque(range(rank, 30 + rank)),
    "fields": lambda rank: Settings(rank, torch.full((2,), float(rank)), [rank]),
    "frozen": lambda rank: Plan(rank, torch.ones(rank + 1)),
    "attributes": lambda rank: argparse.Namespace(rank=rank, q=collections.deque([rank])),
    "defaults": lambda rank: collections.defaultdict(list, {"a": [rank]}),
    "generators": lambda rank: torch.Generator().manual_seed(rank),
}


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("name", DIFFERING)
def test_each_rank_gets_its_own(tmp_path: Path, name: str) -> None:
    make = DIFFERING[name]
    save(tmp_path / "ckpt", [{"w": torch.ones(4), "v": make(rank)} for rank in range(2)])
    live: list[dict[str, Any]] = [{"w": torch.zeros(4), "v": make(1 - rank)} for rank in range(2)]
    if name in ("lengths of deques", "frozen"):  # what a rank has is of its own shape
        live = [{"w": torch.zeros(4), "v": make(rank)} for rank in range(2)]
    restore(tmp_path / "ckpt", live)
    for rank in range(2):
        found, expected = live[rank]["v"], make(rank)
        if name == "generators":
            assert torch.equal(found.get_state(), expected.get_state())
        else:
            assert bits(found) == bits(expected)
    if name != "generators":
        loaded = deeppart.load(tmp_path / "ckpt", rank=1)["v"]
        assert str(loaded).split("(")[0] == str(make(1)).split("(")[0] or name == "defaults"


UNLIKE: dict[str, tuple[Callable[[int], Any], str]] = {
    "a deque and a list": (lambda rank: [[1], collections.deque([1])][rank], "an object saved as a deque at v"),
    "two lengths": (lambda rank: collections.deque([1], maxlen=3 + rank), r"deque\(maxlen=4\) at v"),
    "two classes": (lambda rank: [Settings(), Plan()][rank], "dataclass"),
    "a dict and a namespace": (lambda rank: [{"a": 1}, argparse.Namespace(a=1)][rank], "namespace"),
    "two kinds of dict": (lambda rank: [{"a": 1}, collections.defaultdict(int, a=1)][rank], "defaultdict"),
    "other keys": (lambda rank: {[Phase.WARMUP, Phase.TRAIN][rank]: 1}, "Phase.TRAIN"),
    "other attributes": (lambda rank: argparse.Namespace(**{"ab"[rank]: 1}), "v/b"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_other_kinds_are_refused_by_name_or_saved_per_rank_where_that_is_asked_for(tmp_path: Path, name: str) -> None:
    make, said = UNLIKE[name]
    saved, live = ([{"w": torch.ones(4), "v": make(rank)} for rank in range(2)] for _ in range(2))
    with pytest.raises(StructureMismatchError, match=said):
        save(tmp_path / "ckpt", saved)
    save(tmp_path / "ckpt", saved, replicated={"v*": "none"})
    restore(tmp_path / "ckpt", live, replicated={"v*": "none"})
    assert [bits(each["v"]) for each in live] == [bits(make(rank)) for rank in range(2)]


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("per_rank", ["rank0", "drop", lambda path, old, rank, size: old[-1]])
def test_on_another_number_of_ranks(tmp_path: Path, per_rank: Any) -> None:
    def make(rank: int) -> dict[str, Any]:
        return {
            "s": {rank},
            "e": [Phase.WARMUP, Phase.TRAIN][rank],
            "q": collections.deque([rank]),
            "c": Settings(rank),
        }

    save(tmp_path / "ckpt", [make(0), make(1)])
    live = make(1) | {"s": {7}, "q": collections.deque([7]), "c": Settings(7)}
    restore(tmp_path / "ckpt", [live], per_rank=per_rank)
    expected = {"rank0": make(0), "drop": make(1) | {"s": {7}, "q": collections.deque([7]), "c": Settings(7)}}
    assert bits(live) == bits(expected[per_rank] if isinstance(per_rank, str) else make(1))


@pytest.mark.parametrize("other", [True, 1.0])
@pytest.mark.parametrize("replicated", ["auto", {"d/*": "none"}])
def test_keys_that_are_one_to_a_dict_are_refused_by_name(tmp_path: Path, other: Any, replicated: Any) -> None:
    """Nor can they be each rank's own: restored into one dict, one of them would be lost."""
    states: list[Any] = [{"d": {1: torch.zeros(2)}}, {"d": {other: torch.zeros(2)}}]
    with pytest.raises(StructureMismatchError, match=f"lacks an array at d/1; rank 1 has an array at d/{other}"):
        save(tmp_path, states, replicated=replicated)
