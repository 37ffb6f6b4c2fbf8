"""Leaves in notices: what was said is not said again, and lists are one name."""

from __future__ import annotations

from deeppart.state.tree.paths import Naming, some_names


def test_names_that_differ_in_numbers_are_a_pattern_once_there_are_many() -> None:
    naming = Naming()
    assert naming.news(["draw", "log/0", "log/1"]) == ["draw", "log/0", "log/1"]
    assert naming.news(["draw", "log/0", "log/1", "log/2"]) == ["log/2"]
    assert naming.news(["log/3", "log/4"]) == ["log/* (2 paths)"], "a pattern as `replicated` takes it"
    assert naming.news(["log/5", "draw"]) == []
    assert naming.news([f"replay/{place}/obs" for place in range(5)]) == ["replay/*/obs (5 paths)"]
    assert naming.news(["replay/9/obs", "replay/9/action", "7"]) == ["replay/9/action", "7"]


def test_numbers_inside_names_are_not_positions() -> None:
    names = [f"layer{number}/bn.{number}" for number in range(5)]
    assert Naming().news(names) == names


def test_of_long_lists_eight_are_named() -> None:
    names = [f"x{number}" for number in range(20)]
    assert some_names(names) == ", ".join(names[:8]) + ", ... (20 in all)"
    assert some_names(names[:8]) == ", ".join(names[:8])
