"""Which mode a leaf has, by globs over its path."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.state.tree.globs import Replication

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


def test_rank0_stops_where_another_rule_may_hold_below() -> None:
    rules = Replication({"best/keep": "auto", "best/*": "rank0"})
    assert not rules.is_rank0(("best",), True)
    assert rules.is_rank0(("best", "loss"), False)
    assert not rules.is_rank0(("best", "keep"), False)
    assert Replication({"best/*": "rank0", "*": "none"}).is_rank0(("best",), True)
