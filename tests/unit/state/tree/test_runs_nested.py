"""Containers of many plain containers are one value each: to the last bit, in place, and only where they are large."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.cli.values import json_value
from deeppart.errors import StructureMismatchError, UnsupportedLeafError
from deeppart.offline.inspect.contents import read_contents
from deeppart.state.tree.flat import ApartRules
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication
from deeppart.state.tree.paths import readable
from deeppart.state.tree.runs import (
    LEAST_ROWS,
    MOST_LEVELS,
    describe_leaf_value,
    is_run,
)
from deeppart.state.tree.template import Template
from tests.unit.state.rows import NESTED

Pair = namedtuple("Pair", "a b")


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


def paths(state: Any) -> list[str]:
    return [readable(leaf.path) for leaf in flatten(state).values]


@pytest.mark.parametrize("name", NESTED)
def test_many_rows_are_one_leaf(name: str) -> None:
    assert paths({"x": NESTED[name]}) == ["x"]


OTHERS: dict[str, Any] = {
    "few rows": [[1]] * (LEAST_ROWS - 1),
    "a configuration": {"rank": 3, "model": {"sizes": [[1, 2], [3, 4]], "name": "x"}, "stages": [{"lr": 0.1}] * 20},
    "a tensor far down": [[1]] * LEAST_ROWS + [[{"a": [torch.ones(1)]}]],
    "a namedtuple": [Pair(1, 2)] * LEAST_ROWS,
    "a namedtuple further down": [[1]] * LEAST_ROWS + [[Pair(1, 2)]],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_keeps_a_path_per_item(name: str) -> None:
    assert not is_run(OTHERS[name])
    assert len(paths({"x": OTHERS[name]})) > 1


def test_the_size_that_counts_is_the_containers_own() -> None:
    """What differs between ranks beside a large table is saved per rank by itself."""
    assert paths({"run": {"rank": 3, "table": NESTED["dicts"], "seeds": [1] * 9}}) == [
        "run/rank",
        "run/seeds",
        "run/table",
    ]


def test_metadata_of_a_state_dict_is_kept() -> None:
    odict = OrderedDict(a=1)
    odict._metadata = {}  # type: ignore[attr-defined]
    assert not is_run([[odict]] + [[1]] * LEAST_ROWS)
    assert not is_run([[1]] * LEAST_ROWS + [[odict]])


def nest(levels: int) -> list[Any]:
    """A run with so many containers inside each other."""
    item: Any = 1
    for _ in range(levels - 1):
        item = {"k": item}
    return [item, None, {"k": 2, "l": 3}] * LEAST_ROWS


def test_an_item_that_cannot_be_stored_is_named(ck: deeppart.Checkpointer) -> None:
    record = np.zeros(1, dtype=[("a", "i4")])[0]
    rows: list[Any] = [{"a": [1, 2]} for _ in range(300)]
    rows[7]["a"][1] = record
    with pytest.raises(UnsupportedLeafError, match="path x, item 7, item 0, item 1"):
        ck.checkpoint({"x": rows}, step=1)


def test_a_type_that_cannot_be_stored_is_named_by_its_path() -> None:
    class Flags(int):
        pass

    with pytest.raises(UnsupportedLeafError, match="path x/7/a"):
        flatten({"x": [{"a": Flags(1)} if place == 7 else {"a": 1} for place in range(300)]})


# --- one structure after another, and patterns ------------------------------------------------------------------------

STATES: list[Any] = [
    {"x": NESTED["lists"]},
    {"x": [[1.0]] * (LEAST_ROWS - 1)},
    {"x": NESTED["dicts"]},
    {"x": [torch.ones(1)] * LEAST_ROWS},
    {"x": [[torch.ones(1)]] * LEAST_ROWS},
    {"x": [1] * LEAST_ROWS},
    {"x": nest(MOST_LEVELS + 1)},
    {"x": [{"k": [1] * 9}] * LEAST_ROWS},
    {"x": NESTED["table"]},
    {"x": 5},
]


def splitting(pattern: str) -> ApartRules:
    return ApartRules(splits=Replication({pattern: "none"}).splits)


@pytest.mark.parametrize("cuts", [None, splitting("x/7/*"), splitting("x/*")], ids=["none", "below", "all"])
def test_a_template_fits_what_a_new_walk_would_find(cuts: ApartRules | None) -> None:
    template = Template()
    template.cuts = cuts
    for state in STATES + STATES[::-1]:
        found, fresh = template.flatten(state), flatten(state, cuts=cuts)
        assert found.tokens == fresh.tokens
        assert [leaf.path for leaf in found.values] == [leaf.path for leaf in fresh.values]
        assert all(one.value is other.value for one, other in zip(found.values, fresh.values, strict=True))


@pytest.mark.parametrize(
    ("patterns", "split"),
    [
        ({"x/*/rank": "none"}, True),
        ({"x/3": "rank0"}, True),
        ({"*/rank": "none"}, True),
        ({"x/*": "none"}, False),
        ({"x": "none", "x/3": "all"}, False),
        ({"x/3": "all", "x": "none"}, True),
        ({"y/*": "none", "*": "verify"}, False),
        ({}, False),
    ],
)
def test_patterns_reach_what_they_name(patterns: dict[str, str], split: bool) -> None:
    replication = Replication(patterns)
    assert replication.splits(("x",)) is split
    found = flatten({"x": NESTED["dicts"], "y": 1}, cuts=ApartRules(splits=replication.splits))
    assert (len(found.values) > 2) is split


def test_an_optimizer_with_a_group_for_each_of_many_parameters(ck: deeppart.Checkpointer) -> None:
    def make(count: int) -> torch.optim.Optimizer:
        groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": place / 10} for place in range(count)]
        return torch.optim.SGD(groups, lr=1.0)

    ck.checkpoint({"o": make(300)}, step=1).wait()
    live = make(300)
    for group in live.param_groups:
        group["lr"] = 5.0
    ck.restore({"o": live})
    assert [group["lr"] for group in live.param_groups] == [place / 10 for place in range(300)]
    for count in (299, 301, 3):
        with pytest.raises(StructureMismatchError, match="other parameter groups"):
            ck.restore({"o": make(count)})


# --- read by others ---------------------------------------------------------------------------------------------------


def test_keys_choose_what_lies_in_rows(ck: deeppart.Checkpointer) -> None:
    rows = [{"id": place, "tags": ["a", "b"]} for place in range(300)]
    ck.checkpoint({"rows": rows, "pairs": {f"k{place}": (1, 2) for place in range(300)}}, step=1).wait()
    path = ck.config.persistent_dir
    assert deeppart.load(path, keys="rows") == {"rows": rows}
    assert deeppart.load(path, keys="rows/*") == {"rows": rows}
    assert deeppart.load(path, keys="rows/7") == {"rows": [rows[7]]}
    assert deeppart.load(path, keys="rows/7/id") == {"rows": [{"id": 7}]}
    assert deeppart.load(path, keys=["rows/2?/tags/1", "pairs/k9/0"]) == {
        "rows": [{"tags": ["b"]}] * 10,
        "pairs": {"k9": (1,)},
    }
    with pytest.raises(StructureMismatchError):
        deeppart.load(path, keys="rows/7/other")
    root = Path(path)
    assert [leaf.path for leaf in read_contents(root, keys=["rows/7/tags/1"]).leaves()] == ["rows"]
    assert [leaf.path for leaf in read_contents(root, keys=["*/k9/1"]).leaves()] == ["pairs"]


def test_rows_are_shown_in_short() -> None:
    rows = [{"id": place, "tags": ["a"]} for place in range(300)]
    assert describe_leaf_value(rows) == "a dict of 2, a dict of 2, a dict of 2, a dict of 2 ... (300 in a list)"
    assert json_value(rows)[0] == [["id", 0], ["tags", ["a"]]]


def test_a_run_does_not_share_its_rows_with_what_was_saved(ck: deeppart.Checkpointer) -> None:
    state = {"x": [[place] for place in range(300)]}
    pending = ck.checkpoint(state, step=1)
    state["x"][5][0] = -1
    pending.wait()
    assert deeppart.load(ck.config.persistent_dir)["x"][5] == [5]
