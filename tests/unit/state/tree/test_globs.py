"""Globs over paths, and the settings made of them: ``exclude``, ``replicated`` and ``per_rank``."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import ConfigError, PerRankError, RestoreError, StateError
from deeppart.state.paths.globs import (
    PerRankPolicies,
    Replication,
    covers,
    may_match_below,
    nearest_globs,
    nearest_paths,
    policies_or_refusal,
    strict_error,
)
from tests.unit.sharded_states import restore, rows, save

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.mark.parametrize("pattern", ["a/b", "a/*", "*", "*/b", "a*", "[ab]/b", "?/b", "a/b/c"])
@pytest.mark.parametrize("path", ["a", "a/b", "b", "(root)", "ab"])
def test_may_match_below_is_never_wrong_about_a_match(path: str, pattern: str) -> None:
    prefix = "" if path == "(root)" else f"{path}/"
    below = [prefix + rest for rest in ("a", "b", "c", "b/c", "a/b", "a/b/c", "x/b")]
    if any(covers(each, [pattern]) for each in below):
        assert may_match_below(path, pattern)


PATHS = [
    "model/layers.0.weight", "model/layers.0.bias", "model/head.weight", "model/head.bias", "optimizer/state/0/exp_avg",
    "optimizer/state/0/step", "optimizer/param_groups/0/lr", "epoch", "data/position",
]  # fmt: skip


def test_paths() -> None:
    assert nearest_paths("model/head.wieght", PATHS)[0] == "model/head.weight"
    assert nearest_paths("lr", PATHS) == ["optimizer/param_groups/0/lr"]
    many = [f"layer{number}/weight" for number in range(20_000)]
    assert nearest_paths("x/weight", many) == many[:3], "so many are not compared letter by letter"
    assert nearest_globs("layer*/weigth", many) == ["layer*/weight"]


CASES: list[tuple[dict[str, str], tuple[Any, ...], str]] = [
    ({"replay/*": "none", "best/*": "rank0", "*": "all"}, ("replay", "a", 0), "none"),
    ({"replay/*": "none", "best/*": "rank0", "*": "all"}, ("replay",), "none"),
    ({"replay/*": "none", "best/*": "rank0", "*": "all"}, ("replayed",), "all"),
    ({"replay/*": "none"}, ("other",), "auto"),
    ({"replay": "none"}, ("replay", "deep", "down"), "none"),
    ({"replay": "none"}, ("x", "replay"), "auto"),
    ({"*/running_mean": "none"}, ("model", "1.running_mean"), "auto"),
    ({"*running_mean": "none"}, ("model", "1.running_mean"), "none"),
    ({"a~1b/*": "none"}, ("a/b", 1), "none"),
    ({"a/b/*": "none"}, ("a/b", 1), "auto"),
    ({"best/keep": "auto", "best/*": "rank0"}, ("best", "keep"), "auto"),
    ({"best/*": "rank0", "best/keep": "auto"}, ("best", "keep"), "rank0"),
    ({"x/[01]": "verify"}, ("x", 1), "verify"),
    ({"X": "none"}, ("x",), "auto"),
    ({"*": "none"}, (), "none"),
]


@pytest.mark.parametrize(("rules", "path", "mode"), CASES)
def test_the_first_that_matches(rules: dict[str, str], path: tuple[Any, ...], mode: str) -> None:
    assert Replication(rules).mode(path) == mode


def table_of(error: PerRankError) -> Any:
    """The table that the error says to pass."""
    return ast.literal_eval(str(error.todo).partition("per_rank=")[2].partition("}")[0] + "}")


def keep(path: str, old: Any, rank: int, size: int) -> Any:
    return old[0]


def test_the_first_glob_that_matches_decides_and_what_none_matches_is_strict() -> None:
    policies = PerRankPolicies({"best": "rank0", "rng*": "drop", "replay/*": keep, "rng/cpu": "rank0"})
    found = {
        name: policies.of(name) for name in ("best", "best/loss", "rng", "rng/cpu", "replay", "replay/0/a", "bests")
    }
    assert found == {
        "best": "rank0",
        "best/loss": "rank0",  # a glob covers what is below it
        "rng": "drop",
        "rng/cpu": "drop",
        "replay": keep,
        "replay/0/a": keep,
        "bests": "strict",
    }


@pytest.mark.parametrize("given", ["rank1", 5, None, {"*": "parts"}, {"a": None}, {5: "drop"}, {"": "drop"}, ["drop"]])
def test_what_is_no_way_is_refused_by_name(given: Any) -> None:
    policies, refusal = policies_or_refusal(given)
    assert isinstance(refusal, ConfigError) and refusal.found == repr(given) and "table of globs" in str(refusal)
    assert policies.of("a") == "strict"


def test_the_error_names_ten_leaves_and_a_table_that_covers_all() -> None:
    suggested = {"best": "rank0", "rng/torch": "drop", "rng/python/gauss": "rank0"}
    suggested |= {f"metrics/{name}/x": "rank0" for name in "abcdefghijk"}
    assert PerRankPolicies(table_of(strict_error({"a[0]*": "drop"}, 2, 3, 7))).of("a[0]*") == "drop"
    error = strict_error(suggested, 2, 3, 7)
    assert "best, rng/torch, rng/python/gauss, metrics/a/x" in str(error.found) and "... (14 in all)" in str(
        error.found
    )
    assert str(error.found).count(", ") == 10
    assert table_of(error) == {"best": "rank0", "rng/*": "drop", "metrics/*": "rank0"}


class Adapted(nn.Module):
    """A frozen base and a small adapter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(64, 64)
        self.adapter = nn.Linear(64, 2)


@pytest.mark.parametrize("exclude", ["**", "*", ["model", "step", "?"]])
def test_a_checkpoint_of_nothing_is_refused(tmp_path: Path, exclude: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt"), exclude=exclude) as ck:
        for call in (lambda state: ck.checkpoint(state, 1), ck.prepare):
            with pytest.raises(StateError, match="exclude leaves nothing") as caught:
                call({"model": Adapted(0), "step": 3, "x": []})
            assert caught.value.found and caught.value.todo
    with pytest.raises(RestoreError):
        deeppart.load(tmp_path / "ckpt")


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
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:  # without the setting it is missing
        with pytest.raises(deeppart.StateError, match="base"):
            ck.restore({"model": Adapted(2)})
        assert ck.restore({"model": Adapted(2)}, strict=False) == 3
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
