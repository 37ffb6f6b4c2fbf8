"""Settings of the levels that protect against the loss of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deeppart import Config
from deeppart.errors import ConfigError
from deeppart.nodes import protect
from deeppart.plan.redundancy import Nodes


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
    assert on(1, parity_group=2) == {"local", "persistent"}
    with pytest.raises(ConfigError, match="two nodes or more"):
        on(1, parity_group=2, protection="strict")


@pytest.mark.parametrize("level", ["partner", "parity"])
def test_what_was_asked_for_is_given_or_refused(level: str) -> None:
    with pytest.raises(ConfigError, match="two nodes or more"):
        resolved(1, every={level: 1}, protection="strict")
    for protection in ("best", "strict"):
        with pytest.raises(ConfigError, match="n0 and n1 have one local_dir"):
            resolved(2, shared=((0, 1),), every={level: 1}, protection=protection)
        assert resolved(2, every={level: 2}, protection=protection).every[level] == 2


def test_strict_parity_says_what_it_can_give() -> None:
    with pytest.raises(ConfigError, match="with 3 nodes, parity_group can be 2 to 3 and parity_tolerate 1 to 2"):
        resolved(3, every={"parity": 1}, parity_group=4, protection="strict")
    with pytest.raises(ConfigError, match="parity_tolerate can be 1 to 1"):
        resolved(2, every={"parity": 1}, parity_tolerate=2, protection="strict")
    with pytest.raises(ConfigError, match=r"parity_tolerate can be 1 to 7; with parity_group = 20, 1 to 19"):
        resolved(20, every={"parity": 1}, parity_tolerate=8, protection="strict")


#: (nodes, settings) -> (nodes in a group, nodes that may be lost), words of what is said of it
BEST: list[tuple[int, dict[str, Any], tuple[int, int], list[str]]] = [
    (3, {"parity_group": 4}, (3, 1), ["parity_group = 4", "3 nodes", "groups have 3", "1 may be lost"]),
    (3, {"parity_group": 4, "parity_tolerate": 3}, (3, 2), ["parity_group = 4 and parity_tolerate = 3", "2 may be"]),
    (2, {"parity_group": 8, "parity_tolerate": 4}, (2, 1), ["there are 2 nodes", "groups have 2", "1 may be lost"]),
    (2, {"parity_tolerate": 2}, (2, 1), ["parity_tolerate = 2", "1 may be lost"]),
    (5, {"parity_group": 4, "parity_tolerate": 3}, (4, 3), []),
    (20, {"parity_tolerate": 8}, (9, 8), []),
    (2, {}, (2, 1), []),
]


@pytest.mark.parametrize(("nodes", "settings", "held", "words"), BEST)
def test_best_parity_is_as_near_as_the_nodes_come(
    nodes: int, settings: dict[str, Any], held: tuple[int, int], words: list[str]
) -> None:
    protection = resolved(nodes, every={"parity": 1}, **settings)
    assert (protection.group_size, protection.tolerate) == held
    assert all(len(each.members) >= held[0] and each.tolerate == held[1] for each in protection.sets)
    assert sorted(member.part for each in protection.sets for member in each.members) == list(range(nodes))
    assert len(protection.shortfalls) == bool(words)
    assert not [word for word in words if word not in protection.shortfalls[0]]


def test_best_on_one_node_is_without() -> None:
    protection = resolved(1, every={"partner": 1, "parity": 2})
    assert protection.every == {"local": 1, "partner": 0, "parity": 0, "persistent": 1}
    assert protection.copies == () and protection.sets == ()
    assert [line.partition(" is off")[0] for line in protection.shortfalls] == ["partner (every 1)", "parity (every 2)"]
    assert resolved(1, every="auto", parity_group=4).shortfalls[0].startswith("parity")
    assert resolved(1).shortfalls == (), "the partner level that nobody asked for"


@pytest.mark.parametrize("nodes", range(2, 40))
def test_no_node_is_left_unprotected(nodes: int) -> None:
    protection = resolved(nodes, every={"parity": 1})
    members = [member.part for each in protection.sets for member in each.members]
    assert sorted(members) == list(range(nodes)) and protection.tolerate == 1
    assert all(len(each.members) >= min(8, nodes) for each in protection.sets)
    assert sorted(copy.part for copy in protection.copies) == list(range(nodes))
