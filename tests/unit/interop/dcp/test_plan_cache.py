"""Plans that are not sent again: of states in turn, of states that change, of ranks of which only some change."""

from __future__ import annotations

import contextlib
import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import SavePlanner

from deeppart.errors import StateError
from deeppart.interop.dcp import BalancedSavePlanner, load
from deeppart.interop.dcp import planner as planner_module
from deeppart.interop.dcp.planner import GLOBAL, OWN, OwnPlans
from tests.unit.interop.dcp.stepping import save_as_ranks
from tests.unit.sharded_states import same


@pytest.fixture(autouse=True)
def empty_caches() -> None:
    for cache in (OWN, GLOBAL):
        cache.clear()


def caching(rank: int) -> SavePlanner:
    return BalancedSavePlanner(enable_plan_caching=True)


def saved(states: list[dict[str, Any]], path: Path) -> list[int]:
    """Save, see that it comes back; returns how many items went to and fro, of each rank."""
    sent: list[int] = []
    save_as_ranks(states, path, caching, sent)
    expected = {key: item for state in reversed(states) for key, item in state.items()}
    assert same(load(path), expected)
    return sent


def test_states_in_turn_do_not_displace_each_other(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = [{"a": torch.randn(5000), "n": 1}, {"b": torch.randn(300, 40)}]
    for turn in range(3):
        for number, state in enumerate(states):
            sent = saved([state], tmp_path / f"{turn} {number}")
            assert (sent == [0]) == (turn > 0)


def test_a_state_that_changes_is_planned_again(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"w": torch.randn(5000)},
        {"w": torch.randn(6000)},
        {"w": torch.randn(6000).double()},
        {"w": torch.randn(60, 100).double()},
        {"w": torch.randn(60, 100).double(), "v": 1},
        {"w": {"v": torch.randn(5000)}},
        {"w.v": torch.randn(5000)},
    ]
    for number, state in enumerate(changes):
        assert saved([state], tmp_path / str(number)) != [0]
    for number, state in enumerate(changes):
        assert saved([state], tmp_path / f"again {number}") == [0]


def test_contents_are_those_of_the_save(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(5000), "n": 0}
    for number in range(3):
        state["w"].fill_(number)
        state["n"] = number
        saved([copy.deepcopy(state)], tmp_path / str(number))


def test_old_plans_are_forgotten(tmp_path: Path) -> None:
    for number in range(10):
        saved([{f"w{number}": torch.ones(2000)}], tmp_path / str(number))
    assert saved([{"w9": torch.ones(2000)}], tmp_path / "9 again") == [0]
    assert saved([{"w0": torch.ones(2000)}], tmp_path / "0 again") != [0]


def test_a_coordinator_that_does_not_know_says_so_once(tmp_path: Path) -> None:
    """Another rank coordinated the save before."""
    state = {"w": torch.ones(2000)}
    saved([state], tmp_path / "a")
    GLOBAL.clear()
    with pytest.raises(StateError, match="does not know"):
        saved([state], tmp_path / "b")
    assert saved([state], tmp_path / "c") != [0]
    assert saved([state], tmp_path / "d") == [0]


class Ranks:
    """Processes, each with plans of its own; some of them save, as ranks of a group, the first as coordinator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self._patch = monkeypatch
        self.plans = [OwnPlans() for _ in range(count)]

    def save(self, states: dict[int, dict[str, Any]], path: Path, fails_on: int | None = None) -> None:
        members, patch = list(states), self._patch

        class Planner(BalancedSavePlanner):
            def __init__(self, rank: int) -> None:
                super().__init__(enable_plan_caching=True)
                self.own = ranks.plans[members[rank]]
                self.dies = members[rank] == fails_on

            def create_local_plan(self) -> Any:
                patch.setattr(planner_module, "OWN", self.own)
                return super().create_local_plan()

            def finish_plan(self, new_plan: Any) -> Any:
                if self.dies:
                    raise ConnectionError("it was lost")
                patch.setattr(planner_module, "OWN", self.own)
                return super().finish_plan(new_plan)

        ranks = self
        save_as_ranks(list(states.values()), path, Planner)
        expected = {key: item for state in reversed(list(states.values())) for key, item in state.items()}
        assert same(load(path), expected)


def test_a_process_that_is_another_rank_in_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not sent again is its own, and not that of whoever was that rank before."""
    ranks = Ranks(monkeypatch, 3)
    shared = {"s": torch.ones(3000)}
    states = {0: shared, 1: shared, 2: {**shared, "only": torch.full((2000,), 7.0)}}
    ranks.save(states, tmp_path / "all")
    ranks.save({0: states[0], 2: states[2]}, tmp_path / "two")
    ranks.save(states, tmp_path / "all again")


def test_what_a_rank_does_not_send_is_known_whatever_was_saved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random states of three ranks, of which some change; some saves fail on one of them."""
    for seed in range(6):
        rng, ranks = random.Random(seed), Ranks(monkeypatch, 3)
        GLOBAL.clear()
        for turn in range(30):
            states = {
                rank: {"s": torch.ones(5), f"{rank} {(n := rng.randrange(3))}": torch.full((n + 1,), float(n))}
                for rank in range(3)
            }
            fails_on = rng.choice((0, 1, 2)) if rng.random() < 0.15 else None
            with contextlib.suppress(ConnectionError):
                ranks.save(states, tmp_path / f"{seed} {turn}", fails_on)
