"""Partial restores on several ranks: they ask for the same, and have places for different things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import DeeppartError, PerRankError, RanksDisagreeError
from tests.unit.sharded_states import checkpointer, on_ranks, restore, rows, save

pytestmark = pytest.mark.usefixtures("working_directory")


def whole(name: str, scale: float = 1.0) -> torch.Tensor:
    return (torch.arange(12.0).view(6, 2) + sum(map(ord, name))) * scale


def state(rank: int, ranks: int, scale: float = 1.0) -> dict[str, Any]:
    """A replicated leaf, sharded ones, and one that is each rank's own."""
    return {
        "model": {"plain": whole("plain", scale), "sharded": rows(whole("sharded", scale), rank, ranks)},
        "optimizer": {"sharded": rows(whole("moments", scale), rank, ranks)},
        "rng": torch.full((3,), rank * scale),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_alone_on_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    """What is each rank's own is not asked for: nothing has to be said of it."""
    save(tmp_path, [state(rank, 2) for rank in range(2)], replicated={"rng": "none"})
    live = [state(rank, ranks, 0.0) for rank in range(ranks)]
    if ranks != 2:
        with pytest.raises(PerRankError, match="rng"):
            restore(tmp_path, live)
    restore(tmp_path, live, keys="model")
    for rank, each in enumerate(live):
        assert torch.equal(each["model"]["plain"], whole("plain"))
        assert torch.equal(each["model"]["sharded"], rows(whole("sharded"), rank, ranks))
        assert not each["optimizer"]["sharded"].any() and not each["rng"].any()
    restore(tmp_path, live, exclude=["model/*", "rng"])
    assert torch.equal(live[0]["optimizer"]["sharded"], rows(whole("moments"), 0, ranks)) and not live[-1]["rng"].any()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_in_another_precision(tmp_path: Path, ranks: int) -> None:
    save(tmp_path, [{"x": rows(whole("x"), rank, 2), "y": whole("y")} for rank in range(2)])
    live = [
        {"x": rows(whole("x", 0.0).bfloat16(), rank, ranks), "y": rows(whole("y", 0.0).half(), rank, ranks)}
        for rank in range(ranks)
    ]
    restore(tmp_path, live, cast=True)
    for rank, each in enumerate(live):
        assert torch.equal(each["x"], rows(whole("x").bfloat16(), rank, ranks)) and each["x"].dtype == torch.bfloat16
        assert torch.equal(each["y"], rows(whole("y").half(), rank, ranks))


def test_shards_that_share_memory_cannot_be_converted_to_two_things(tmp_path: Path) -> None:
    save(tmp_path, [{"x": rows(whole("x"), 0, 1), "y": rows(whole("y"), 0, 1)}])
    shared = rows(whole("x", 0.0).half(), 0, 1)
    with pytest.raises(DeeppartError, match="share memory"):
        restore(tmp_path, [{"x": shared, "y": shared}], cast=True)
    assert not shared.any()


def test_keys_of_any_rank_are_asked_for_by_all(tmp_path: Path) -> None:
    save(tmp_path, [{"a": whole("a"), "b": {"x": whole("b")}, "c": whole("c")}] * 2)
    live: list[dict[str, Any]] = [{"a": whole("a", 0)}, {"a": whole("a", 0), "b": {"x": whole("b", 0)}}]
    restore(tmp_path, live, exclude="c")
    assert all(torch.equal(each["b"]["x"], whole("b")) for each in live) and "c" not in live[0]


@pytest.mark.parametrize("other", [{"keys": "b"}, {"exclude": "a"}, {"strict": False}, {"cast": True}, {}])
def test_ranks_that_ask_for_different_things_are_told(tmp_path: Path, other: dict[str, Any]) -> None:
    save(tmp_path, [{"a": whole("a"), "b": whole("b")}] * 2)

    def restored(comm: Comm) -> None:
        live = {"a": whole("a", 0), "b": whole("b", 0)}
        with checkpointer(tmp_path, comm) as ck:
            with pytest.raises(RanksDisagreeError, match="ranks made different calls"):
                ck.restore(live, **({"keys": "a"} if comm.rank else other))
            with pytest.raises(DeeppartError):  # of one rank an impossible one
                ck.restore(live, keys=[] if comm.rank else None)
        assert not live["a"].any() and not live["b"].any()

    on_ranks(2, restored)


def wrapped(rank: int) -> dict[str, Any]:
    """A model inside DistributedDataParallel, of which each rank has saved some for itself."""
    return {"m": {"module.a": whole("a") + 100 * rank, "module.b": whole("b")}, "seed": 7 + rank}


@pytest.mark.filterwarnings("ignore:.*words that wrappers insert:deeppart.errors.DeeppartWarning")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("cast", [False, True])
def test_what_is_each_ranks_own_is_asked_for_by_its_name_here(tmp_path: Path, ranks: int, cast: bool) -> None:
    """As the live state calls it, which may be otherwise than the checkpoint does, and on each rank."""
    save(tmp_path, [wrapped(rank) for rank in range(2)], replicated={"m/module.a": "none", "seed": "none"})
    how: dict[str, Any] = {"cast": cast, "per_rank": "strict" if ranks == 2 else "rank0"}
    kind = torch.float64 if cast else torch.float32
    for names in (["a"] * 3, ["module.a", "a", "_orig_mod.a"]):

        def live(names: list[str] = names) -> list[dict[str, Any]]:
            return [
                {"m": {name: whole("a", 0).to(kind), name[:-1] + "b": whole("b", 0)}, "seed": 0}
                for name in names[:ranks]
            ]

        states = live()
        restore(tmp_path, states, keys=["m/*a"], **how)
        for rank, (each, name) in enumerate(zip(states, names, strict=False)):
            assert torch.equal(each["m"][name], (whole("a") + 100 * (rank if ranks == 2 else 0)).to(kind))
            assert not each["m"][name[:-1] + "b"].any() and each["seed"] == 0
        states = live()
        restore(tmp_path, states, exclude=["m/*a", "seed"], cast=cast)
        for each, name in zip(states, names, strict=False):
            assert torch.equal(each["m"][name[:-1] + "b"], whole("b")) and not each["m"][name].any()


@pytest.mark.filterwarnings("ignore:.*words that wrappers insert:deeppart.errors.DeeppartWarning")
@pytest.mark.filterwarnings("ignore:.*cover nothing here:deeppart.errors.DeeppartWarning")
@pytest.mark.parametrize("how", [{}, {"cast": True}, {"exclude": "m/none"}])
def test_a_small_value_of_each_rank_that_comes_back_is_one(tmp_path: Path, how: dict[str, Any]) -> None:
    """Nobody has a place for it, and it is made: so it has to be said which rank's, whatever else is asked for."""
    save(tmp_path, [wrapped(rank) for rank in range(2)], replicated={"m/module.a": "none", "seed": "none"})
    names = ["module.", "", ""]
    live: list[dict[str, Any]] = [{"m": {f"{name}a": whole("a", 0), f"{name}b": whole("b", 0)}} for name in names]
    with pytest.raises(PerRankError, match=r"m/module\.a, seed"):
        restore(tmp_path, live, **how)
    restore(tmp_path, live, per_rank="rank0", **how)
    assert [each["seed"] for each in live] == [7, 7, 7]


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_stands_apart_is_restored_as_a_whole_and_under_its_name(tmp_path: Path, ranks: int) -> None:
    """On another number of ranks the function is asked for all of it; what it gives goes where it was saved."""
    saved = [{"m": whole("m"), "own": {"x": whole("x"), "y": whole("y")} if rank else None} for rank in range(2)]
    save(tmp_path, saved, replicated={"own": "none"})
    how: dict[str, Any] = {"per_rank": lambda path, old, rank, size: old[1]}
    for asked, name in (({"exclude": "own/x"}, "own"), ({"rename": {"own": "mine"}}, "mine"), ({}, "module.own")):
        live: list[dict[str, Any]] = [
            {"m": whole("m", 0), name: {"x": whole("x", 0), "y": whole("y", 0)}} for _ in range(ranks)
        ]
        if name == "module.own":
            live = [{"state": each} for each in live]
            save(tmp_path / "in", [{"state": each} for each in saved], replicated={"state/own": "none"})
        with pytest.raises(DeeppartError, match="as a whole and under their saved names"):
            restore(tmp_path / "in" if name == "module.own" else tmp_path, live, **asked, **how)
        inner = live[0].get("state", live[0])
        assert not inner["m"].any() and inner.keys() == {"m", name} and not inner[name]["x"].any()
