"""Lists, tuples and large dicts of plain values, to any depth, are one value each, to the last bit."""

from __future__ import annotations

import json
import math
import random
import struct
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeppart
from deeppart.cli.output import json_value
from deeppart.errors import CorruptFileError, StructureMismatchError, UnsupportedLeafError
from deeppart.offline.inspect.contents import read_contents
from deeppart.state.paths.globs import Replication
from deeppart.state.paths.keys import readable
from deeppart.state.tree.flat import RankLocalRules
from deeppart.state.tree.flattening import flatten
from deeppart.state.tree.template import Template
from deeppart.state.tree.value_containers import (
    LEAST_ENTRIES,
    LEAST_ITEMS,
    LEAST_ROWS,
    container_levels,
    describe_leaf_value,
    in_order,
    is_run,
)
from deeppart.state.values import MOST_LEVELS, decode_value, encode_value, same_value
from deeppart.testing.states import difference
from deeppart.testing.strategies import keys, values
from tests.golden.make import FILES
from tests.golden.states import make_runs
from tests.sampling import examples
from tests.unit.state.rows import NESTED

NAN = struct.unpack("<d", bytes.fromhex("0100000000f4ff7f"))[0]
RUNS: dict[str, Any] = {
    "small ints": list(range(-5, 20)),
    "int16": [-300] * 9,
    "int64": [2**63 - 1, -(2**63)] * 5,
    "ints beyond": [2**63] + [1] * 9,
    "huge ints": [1 << 50_000] * 8,
    "floats": [0.0, -0.0, math.inf, -math.inf, 5e-324, NAN, 0.1, 1e308, 2.0],
    "bools": [True, False] * 5,
    "bools and ints": [True, 1, 1.0, 0, False, 0.0, -0.0, None],
    "texts": ["", "a", "größe", "\0", "☃", "\U0001f600", "\n", "/"],
    "lone surrogates": ["\ud800", "\udc00"] * 5,
    "bytes": [b"", b"\xff"] * 5,
    "tuple": tuple(range(9)),
    "numpy": list(np.arange(9, dtype=np.float32) / 3),
    "numpy bool": [np.bool_(True)] * 8,
    "long doubles": [np.longdouble(1) / 3] * 8,
    "numpy texts": [np.str_("a"), np.str_("abc")] * 4,
    "dtypes": [torch.float32, torch.device("cpu"), torch.Size([2]), 1j, np.int8(3), "x", None, 1],
    "table": {f"word {place}": place for place in range(LEAST_ENTRIES)},
    "ints to floats": {place: place / 3 for place in reversed(range(LEAST_ENTRIES))},
    "odict": OrderedDict((place, None) for place in reversed(range(LEAST_ENTRIES))),
    "counter": Counter({place: place for place in range(LEAST_ENTRIES)}),
    "tuple keys": {(place, "x"): place for place in range(LEAST_ENTRIES)},
    "keys of many types": dict.fromkeys(range(LEAST_ENTRIES), 1) | {"1": 2, None: 3, 0.5: 4, b"x": 5, -1: True},
}


@pytest.mark.parametrize("name", RUNS)
def test_to_the_last_bit(name: str) -> None:
    value = RUNS[name]
    assert is_run(value) and len(flatten({"x": value}).values) == 1
    encoded = json.loads(json.dumps(encode_value(value, "")))
    back = decode_value(encoded, "")
    assert difference(value, back) is None
    assert json.dumps(encode_value(back, "")) == json.dumps(encoded)


@pytest.mark.parametrize(
    "value",
    [
        [1] * (LEAST_ITEMS - 1),
        [1] * LEAST_ITEMS + [torch.ones(1)],
        [[1]] * (LEAST_ROWS - 1),
        dict.fromkeys(range(LEAST_ENTRIES - 1), 1),
        {place: [] for place in range(LEAST_ENTRIES - 1)},
    ],
)
def test_what_is_no_run(value: Any) -> None:
    assert not is_run(value)


def test_what_is_encoded_does_not_change_with_the_container() -> None:
    live = [1.5] * 20
    encoded = encode_value(live, "")
    live[0] = 2.5
    assert decode_value(encoded, "") == [1.5] * 20


BAD: list[Any] = [
    ["list"],
    ["list", 5],
    ["list", {"a": 1}],
    ["list", [1], [2]],
    ["list", [["array", [1]]]],
    ["list", [1 << 63]],
    ["list", [["int", "5"]]],
    ["tuple"],
    ["dict", [1]],
    ["dict", [1, 2], [3]],
    ["dict", [1], [2, 3]],
    ["dict", [1, 1], [2, 3]],
    ["dict", [1, True], [2, 3]],
    ["dict", [["list", [1]]], [2]],
    ["counter", ["a"], {}],
    [["list"], [1]],
    [7, [1]],
    [],
]


@pytest.mark.parametrize("encoded", BAD, ids=json.dumps)
def test_what_nobody_has_encoded_is_refused(encoded: Any) -> None:
    with pytest.raises(CorruptFileError):
        decode_value(encoded, "here")


def test_an_item_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    record = np.zeros(1, dtype=[("a", "i4")])[0]
    with (
        deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck,
        pytest.raises(UnsupportedLeafError, match="path x, item 7"),
    ):
        ck.checkpoint({"x": [1] * 7 + [record]}, step=1)


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


def test_live_containers_stay_the_same_objects(ck: deeppart.Checkpointer) -> None:
    state: dict[str, Any] = {"list": list(range(30)), "table": {str(place): place for place in range(300)}}
    state["pair"] = (0.5,) * 9
    state["counts"] = Counter(dict.fromkeys(range(300), 5))
    state["ordered"] = OrderedDict((place, 1) for place in range(300))
    ck.checkpoint(state, step=1).wait()
    live: Any
    for live in (
        {"list": [9] * 30, "table": {"0": 9}, "pair": (1,) * 9, "counts": Counter("ab"), "ordered": OrderedDict()},
        {"list": [], "table": {}, "pair": None, "counts": None, "ordered": OrderedDict.fromkeys(reversed(range(300)))},
        {"list": [9] * 99, "table": {True: 1} | dict.fromkeys(range(400), 1), "pair": (2,) * 9},
    ):
        objects = {key: item for key, item in live.items() if isinstance(item, (list, dict))}
        assert ck.restore(live) == 1
        assert difference(state, live, ordered=False) is None
        assert list(live["ordered"]) == list(state["ordered"])
        assert all(live[key] is item for key, item in objects.items())


def test_what_was_saved_item_by_item_meets_a_run_and_the_other_way_round(
    ck: deeppart.Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of before there were runs is what one is with a threshold that nothing reaches."""
    state = {"list": list(range(30)), "table": dict.fromkeys(range(300), 0.5), "pair": (True,) * 9, "n": [None] * 8}
    live: dict[str, Any] = {"list": [0] * 12, "table": {1: 2}, "pair": (False,) * 9, "n": [1] * 9}
    for step, (saved, restored) in enumerate([(10**9, 1), (1, 10**9), (8, 10**9), (10**9, 8)]):
        for name in ("LEAST_ITEMS", "LEAST_ENTRIES"):
            monkeypatch.setattr(f"deeppart.state.tree.value_containers.{name}", saved)
        ck.checkpoint(state, step=step).wait()
        for name in ("LEAST_ITEMS", "LEAST_ENTRIES"):
            monkeypatch.setattr(f"deeppart.state.tree.value_containers.{name}", restored)
        target = {key: type(item)(item) for key, item in live.items()}
        assert ck.restore(target, step=step) == step
        assert difference(state, target, ordered=False) is None
        assert difference(state, deeppart.load(ck.config.persistent_dir, step)) is None


def test_a_million_values_take_a_bounded_multiple_of_their_bytes(ck: deeppart.Checkpointer) -> None:
    """Of the bytes that a pickle has: 4 of the integers, and of the files a step leaves, which hold them twice."""
    state = {"x": [place << 12 for place in range(1_000_000)]}
    pending = ck.checkpoint(state, step=1)
    pending.wait()
    assert deeppart.load(ck.config.persistent_dir) == state
    files = [path for path in Path(ck.config.persistent_dir).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4 * 8_000_000


def test_keys_choose_items_of_runs(ck: deeppart.Checkpointer) -> None:
    state = {"list": list(range(100)), "table": {f"w/{place}": place for place in range(300)}, "t": torch.ones(2)}
    ck.checkpoint(state, step=1).wait()
    path = ck.config.persistent_dir
    assert deeppart.load(path, keys="list") == {"list": state["list"]}
    assert deeppart.load(path, keys="list/*") == {"list": state["list"]}
    assert deeppart.load(path, keys=["list/7", "list/11", "t"])["list"] == [7, 11]
    assert deeppart.load(path, keys="table/w~17") == {"table": {"w/7": 7}}
    with pytest.raises(StructureMismatchError):
        deeppart.load(path, keys="table/w/7")


def test_show_finds_items_of_runs(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint({"list": list(range(100)), "other": list(range(50)), "few": [1, 2]}, step=1).wait()
    root = Path(ck.config.persistent_dir)
    assert [leaf.path for leaf in read_contents(root, keys=["list/7"]).leaves] == ["list"]
    assert [leaf.path for leaf in read_contents(root, keys=["*/1"]).leaves] == ["list", "other", "few/1"]
    with pytest.raises(StructureMismatchError):
        read_contents(root, keys=["list/100"])


def test_the_order_of_entries_is_no_difference() -> None:
    one = [{"a": 1, "b": {"c": 2, "d": 3}}] * LEAST_ROWS
    other = [{"b": {"d": 3, "c": 2}, "a": 1}] * LEAST_ROWS
    assert encode_value(one, "") != encode_value(other, "")
    assert in_order(one) == in_order(other)
    assert in_order(one) != in_order([{"a": 1, "b": OrderedDict(c=2, d=3)}] * LEAST_ROWS)


GOLDEN = FILES / "runs.json"


def encoded_again(value: Any) -> Any:
    return json.loads(json.dumps(encode_value(value, "")))


def nest(levels: int) -> list[Any]:
    """A run with so many containers inside each other."""
    item: Any = 1
    for _ in range(levels - 1):
        item = {"k": item}
    return [item, None, {"k": 2, "l": 3}] * LEAST_ROWS


def test_the_deepest_run_comes_back() -> None:
    deepest = nest(MOST_LEVELS)
    assert container_levels(deepest) == MOST_LEVELS
    assert decode_value(encoded_again(deepest), "") == deepest
    assert not is_run(nest(MOST_LEVELS + 1))


# --- the encoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", make_runs())
def test_golden_encodings(name: str) -> None:
    run, golden = make_runs()[name], json.loads(GOLDEN.read_text())[name]
    assert difference(run, decode_value(golden, name)) is None
    assert encoded_again(run) == golden
    assert same_value(run, decode_value(golden, name))


plain = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=6,
)


@given(st.lists(plain, min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=examples(150), deadline=None)
def test_any_plain_rows_come_back_to_the_last_bit(rows: list[Any], rng: random.Random) -> None:
    many = [rng.choice(rows) for _ in range(LEAST_ROWS)]
    if not is_run(many):
        return  # nested too deeply
    encoded = encoded_again(many)
    back = decode_value(encoded, "")
    assert difference(many, back) is None
    assert encoded_again(back) == encoded


@pytest.mark.parametrize("level", [["list"], ["dict", ["a"]]], ids=["list", "dict"])
def test_containers_inside_each_other_without_end_are_refused(level: list[Any]) -> None:
    value: Any = 1
    for _ in range(MOST_LEVELS + 1):
        value = [*level, [value]]
    with pytest.raises(CorruptFileError, match="inside each other"):
        decode_value(value, "here")


Pair = namedtuple("Pair", "a b")


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


def test_an_item_of_a_row_that_cannot_be_stored_is_named(ck: deeppart.Checkpointer) -> None:
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


def splitting(pattern: str) -> RankLocalRules:
    return RankLocalRules(splits=Replication({pattern: "none"}).splits)


@pytest.mark.parametrize("cuts", [None, splitting("x/7/*"), splitting("x/*")], ids=["none", "below", "all"])
def test_a_template_fits_what_a_new_walk_would_find(cuts: RankLocalRules | None) -> None:
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
    found = flatten({"x": NESTED["dicts"], "y": 1}, cuts=RankLocalRules(splits=replication.splits))
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
    assert [leaf.path for leaf in read_contents(root, keys=["rows/7/tags/1"]).leaves] == ["rows"]
    assert [leaf.path for leaf in read_contents(root, keys=["*/k9/1"]).leaves] == ["pairs"]


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
