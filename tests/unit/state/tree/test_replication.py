"""Which mode a leaf has, by globs over its path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.state.tree.flat import Apart, ApartRules
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication
from deeppart.state.tree.paths import exact
from deeppart.state.tree.template import Template

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


def test_a_mode_for_all() -> None:
    assert Replication("all").mode(("x",)) == "all"
    assert not Replication("none").has_rank0


def test_rank0_stops_where_another_rule_may_hold_below() -> None:
    rules = Replication({"best/keep": "auto", "best/*": "rank0"})
    assert not rules.is_rank0(("best",), True)
    assert rules.is_rank0(("best", "loss"), False)
    assert not rules.is_rank0(("best", "keep"), False)
    assert Replication({"best/*": "rank0", "*": "none"}).is_rank0(("best",), True)


def test_what_stands_apart_comes_last_and_templates_fit_it() -> None:
    def state(value: float) -> dict[str, Any]:
        return {
            "a": {"own": [torch.full((2,), value), value], "shared": torch.ones(3)},
            "best": {"w": torch.full((4,), value), "n": 1},
            "items": [torch.ones(5), {"x": torch.full((6,), value)}, "v"],
            "z": torch.ones(7),
        }

    rules = Replication({"best/*": "rank0"})
    mine = frozenset({exact(("a", "own")), exact(("items", 1))})
    for leads, sizes in ((True, [3, 5, 7, 4, 2, 6]), (False, [3, 5, 7, 2, 6])):
        template = Template()
        template.cuts = ApartRules(mine, rules.is_rank0, leads)
        first = template.flatten(state(1.0))
        assert [len(data) for data in first.data] == sizes
        assert first.shared[:2] == (3, 1)
        assert first.common == ((4, 2) if leads else (3, 1))
        tokens = first.tokens
        second = template.flatten(state(2.0))
        assert second.tokens is tokens, "the template fits"
        assert [len(data) for data in second.data] == sizes
        assert second.data[-1].tolist() == [2.0] * 6
        assert [leaf.value for leaf in second.values][-1] == 2.0
        uncut = template.cut(None)
        assert [leaf.path for leaf in uncut.arrays] == [leaf.path for leaf in flatten(state(2.0)).arrays]
        assert not any(isinstance(each, Apart) for each in uncut.apart)
