"""Settings of the levels that protect against the loss of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deeppart import Config
from deeppart.errors import ConfigError
from deeppart.protection import protect
from deeppart.redundancy import Nodes


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def resolved(nodes: int, shared: tuple[tuple[int, int], ...] = (), **settings: Any) -> Any:
    names = tuple(f"n{number}" for number in range(nodes))
    return protect(Config(**{"local_dir": "/local"} | settings), Nodes.of(range(nodes)), names, shared)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"every": {"partner": 1}}, "local_dir"),
        ({"every": {"parity": 4}}, "local_dir"),
        ({"local_dir": "x", "every": {"local": 2, "partner": 1}}, "multiple"),
        ({"local_dir": "x", "every": {"local": 2, "parity": 3}}, "multiple"),
        ({"parity_group": 4, "parity_tolerate": 4}, "fewer than parity_group"),
        ({"parity_group": 2, "parity_tolerate": 3}, "fewer than parity_group"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Config(**settings)


def test_partner_is_on_where_there_are_two_nodes() -> None:
    assert resolved(1).every["partner"] == 0
    assert resolved(2).every["partner"] == 1 and len(resolved(2).copies) == 2
    assert resolved(3, every={"local": 3}).every["partner"] == 3
    assert resolved(3, every={"partner": 0}).copies == ()
    assert resolved(3, shared=((0, 2),)).every["partner"] == 0


def test_levels_that_are_on_with_auto() -> None:
    def on(nodes: int, **settings: Any) -> set[str]:
        return {level for level, every in resolved(nodes, every="auto", **settings).every.items() if every}

    assert on(1) == {"local", "persistent"} == on(2, shared=((0, 1),))
    assert on(2) == {"local", "partner", "persistent"}
    assert on(4, parity_group=4) == {"local", "parity", "persistent"} == on(3, parity_tolerate=2)
    assert on(4, local_dir=None) == {"persistent"}
    with pytest.raises(ConfigError, match="two nodes or more"):
        on(1, parity_group=2)


@pytest.mark.parametrize("level", ["partner", "parity"])
def test_what_was_asked_for_is_given_or_refused(level: str) -> None:
    with pytest.raises(ConfigError, match="two nodes or more"):
        resolved(1, every={level: 1})
    with pytest.raises(ConfigError, match="n0 and n1 have one local_dir"):
        resolved(2, shared=((0, 1),), every={level: 1})
    assert resolved(2, every={level: 2}).every[level] == 2


def test_parity_says_what_it_can_give() -> None:
    with pytest.raises(ConfigError, match="with 3 nodes, parity_group can be 2 to 3 and parity_tolerate 1 to 2"):
        resolved(3, every={"parity": 1}, parity_group=4)
    with pytest.raises(ConfigError, match="parity_tolerate can be 1 to 1"):
        resolved(2, every={"parity": 1}, parity_tolerate=2)
    with pytest.raises(ConfigError, match=r"parity_tolerate can be 1 to 7; with parity_group = 20, 1 to 19"):
        resolved(20, every={"parity": 1}, parity_tolerate=8)


@pytest.mark.parametrize("nodes", range(2, 40))
def test_no_node_is_left_unprotected(nodes: int) -> None:
    protection = resolved(nodes, every={"parity": 1})
    members = [member.part for each in protection.sets for member in each.members]
    assert sorted(members) == list(range(nodes)) and protection.tolerate == 1
    assert all(len(each.members) >= min(8, nodes) for each in protection.sets)
    assert sorted(copy.part for copy in protection.copies) == list(range(nodes))
