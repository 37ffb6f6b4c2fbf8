"""Which checkpoints stay: the newest of each level, and on the nodes all that the redundant levels need."""

from __future__ import annotations

from collections.abc import Iterable

from deeppart_simulator.campaign.background import retire
from deeppart_simulator.campaign.survival import Stored

ALL = {"local": 2, "partner": 1, "parity": 1, "persistent": 1}


def stored(*levels: Iterable[str]) -> list[Stored]:
    return [Stored(number, float(number), (0,), set(each)) for number, each in enumerate(levels)]


def left(found: list[Stored], keep: dict[str, int]) -> list[tuple[int, list[str]]]:
    return [(each.sequence, sorted(each.levels)) for each in retire(found, keep)]


def test_each_level_keeps_its_newest() -> None:
    found = stored(["persistent"], ["local", "persistent"], ["local"], ["local"])
    assert left(found, ALL) == [(1, ["persistent"]), (2, ["local"]), (3, ["local"])]


def test_zero_keeps_all() -> None:
    found = stored(*[["local", "persistent"]] * 5)
    assert len(left(found, dict.fromkeys(ALL, 0))) == 5


def test_what_a_redundant_level_keeps_stays_on_the_nodes_too() -> None:
    found = stored(["local", "partner"], ["local"], ["local"], ["local"])
    assert left(found, ALL) == [(0, ["local", "partner"]), (2, ["local"]), (3, ["local"])]
    found = stored(["local", "partner"], ["local", "partner"], ["local"], ["local"])
    assert left(found, ALL) == [(1, ["local", "partner"]), (2, ["local"]), (3, ["local"])]


def test_the_order_of_the_list_does_not_matter_and_stays() -> None:
    found = stored(["local"], ["local"], ["local"])[::-1]
    assert [sequence for sequence, _ in left(found, ALL)] == [2, 1]
