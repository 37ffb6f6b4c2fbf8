"""Containers of many plain containers are one value each: to the last bit, in place, and only where they are large."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeppart
from deeppart.cli.show import _json_value
from deeppart.errors import CorruptFileError, NewerFormatError, StateError, StructureMismatchError, UnsupportedLeafError
from deeppart.offline.inspect.contents import read_contents
from deeppart.state.columns import MOST_LEVELS
from deeppart.state.filling import fill, places
from deeppart.state.flatten import Cuts, flatten, readable
from deeppart.state.ordering import in_order
from deeppart.state.replication import Replication
from deeppart.state.runs import (
    LEAST_ROWS,
    decode_leaf_value,
    describe_leaf_value,
    encode_leaf_value,
    is_run,
    run_levels,
    same_leaf_value,
)
from deeppart.state.structure import STRUCTURE_VERSION, decode_structure
from deeppart.state.template import Template
from deeppart.testing.states import difference
from deeppart.testing.strategies import keys, values
from tests.golden.make_runs import make_runs

GOLDEN = Path(__file__).parents[1] / "golden" / "structure-v3" / "runs.json"
Pair = namedtuple("Pair", "a b")


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


def paths(state: Any) -> list[str]:
    return [readable(leaf.path) for leaf in flatten(state).values]


def encoded_again(value: Any) -> Any:
    return json.loads(json.dumps(encode_leaf_value(value, "")))


# --- which containers are one leaf ------------------------------------------------------------------------------------

NESTED: dict[str, Any] = {
    "lists": [[1.5] * 10 for _ in range(LEAST_ROWS)],
    "dicts": [{"id": place, "name": "x", "loss": 0.5} for place in range(LEAST_ROWS)],
    "table": {place: (place, "a", None) for place in range(LEAST_ROWS)},
    "tuple": tuple([place] for place in range(LEAST_ROWS)),
    "some": [[1], 2, None, "x", {"a": []}] * LEAST_ROWS,
    "deep": [{"a": [{"b": ({"c": [1]},)}]}] * LEAST_ROWS,
}


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


def test_the_deepest_run_comes_back() -> None:
    deepest = nest(MOST_LEVELS)
    assert run_levels(deepest) == MOST_LEVELS
    assert decode_leaf_value(encoded_again(deepest), "") == deepest
    assert not is_run(nest(MOST_LEVELS + 1))


def test_what_contains_itself_is_refused_at_once() -> None:
    state: list[Any] = []
    state += [state] * 300
    with pytest.raises(UnsupportedLeafError, match="contains itself"):
        flatten({"x": state})


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


# --- the encoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", make_runs())
def test_golden_encodings(name: str) -> None:
    run, golden = make_runs()[name], json.loads(GOLDEN.read_text())[name]
    assert difference(run, decode_leaf_value(golden, name)) is None
    assert encoded_again(run) == golden
    assert same_leaf_value(run, decode_leaf_value(golden, name))


@pytest.mark.parametrize(
    ("older", "value"),
    [
        (["run", "list", ["items", ["x"] * 100]], ["x"] * 100),
        (["run", "tuple", ["items", [1, None, 2.5] * 100]], (1, None, 2.5) * 100),
        (
            ["run", "dict", ["items", [["tuple", [place, "x"]] for place in range(300)]], ["items", ["a"] * 300]],
            {(place, "x"): "a" for place in range(300)},
        ),
    ],
)
def test_what_version_2_has_written_is_read(older: Any, value: Any) -> None:
    assert difference(decode_leaf_value(older, "here"), value) is None


def test_a_later_version_is_told() -> None:
    with pytest.raises(NewerFormatError):
        decode_structure({"version": STRUCTURE_VERSION + 1}, "here")


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
@settings(max_examples=150, deadline=None)
def test_any_plain_rows_come_back_to_the_last_bit(rows: list[Any], rng: random.Random) -> None:
    many = [rng.choice(rows) for _ in range(LEAST_ROWS)]
    if not is_run(many):
        return  # nested too deeply
    encoded = encoded_again(many)
    back = decode_leaf_value(encoded, "")
    assert difference(many, back) is None
    assert encoded_again(back) == encoded


def test_few_bytes_and_no_keys_again_and_again() -> None:
    rows = [{"identifier": place, "value": place / 7} for place in range(10_000)]
    assert len(json.dumps(encode_leaf_value(rows, ""))) < 10_000 * 20


BAD: list[Any] = [
    ["rows"],
    ["rows", "list", ["i1", "AQ=="]],
    ["rows", "list", ["i1", "Ag=="], ["i1", "AQ=="]],
    ["rows", "list", ["i1", "/wI="], ["i1", "AQ=="]],
    ["rows", "list", ["f8", "AAAAAAAA8D8="], ["i1", "AQ=="]],
    ["rows", "list", ["bool", "AQ=="], ["i1", "AQ=="]],
    ["rows", "list", ["items", [1]], ["i1", "AQ=="]],
    ["rows", "list", [], []],
    ["rows", "set", ["i1", "AQ=="], ["i1", "AQ=="]],
    ["rows", "set", ["i1", ""], ["i1", ""], ["i1", ""]],
    ["rows", ["list"], ["i1", "AQ=="], ["i1", "AQ=="]],
    ["rows", "dict", ["i1", "AQ=="], ["i1", "AQ=="]],
    ["rows", "dict", ["i1", "AQ=="], ["i1", "AQ=="], ["i1", "AQI="]],
    ["rows", "dict", ["i1", "Ag=="], ["i1", "AQE="], ["i1", "AQE="]],
    ["rows", "dict", ["i1", "AQ=="], ["rows", "list", ["i1", "AA=="], ["items", []]], ["i1", "AQ=="]],
    ["records", "dict", ["items", []], []],
    ["records", "dict", ["items", ["a", "a"]], [["i1", "AQ=="], ["i1", "AQ=="]]],
    ["records", "dict", ["items", ["a", "b"]], [["i1", "AQ=="], ["i1", "AQE="]]],
    ["records", "dict", ["items", ["a"]], {}],
    ["records", "dict", ["items", [[]]], [["i1", "AQ=="]]],
    ["records", "list", ["items", ["a"]], [["i1", "AQ=="]]],
    ["mixed", "AAE=", [["i1", "AQ=="]]],
    ["mixed", "AA==", [["i1", "AQE="]]],
    ["mixed", "", [["i1", "AQ=="]]],
    ["mixed", "AA==", {"0": 1}],
    ["mixed", 5, []],
    ["texts", ["i1", "AQ=="], "ab"],
    ["texts", ["i1", "AQ=="], ["a"]],
    ["texts", ["i1", "AQ=="], "\ud800"],
    ["texts", ["i1", "AQ=="]],
    ["texts", "AQ==", "a"],
    [["rows"], "list"],
    [],
]


@pytest.mark.parametrize("column", BAD, ids=json.dumps)
def test_columns_that_nobody_has_written_are_refused(column: Any) -> None:
    for encoded in (["run", "list", column], ["run", "list", ["mixed", "AA==", [column]]]):
        with pytest.raises(CorruptFileError) as caught:
            decode_leaf_value(encoded, "here")
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("form", ["mixed", "rows", "records"])
def test_columns_inside_each_other_without_end_are_refused(form: str) -> None:
    column: Any = ["i1", "AQ=="]
    for _ in range(200):
        outer = {"mixed": ["AA==", [column]], "rows": ["list", ["i1", "AQ=="], column]}
        column = [form, *outer.get(form, ["dict", ["items", ["a"]], [column]])]
    with pytest.raises(CorruptFileError, match="inside each other"):
        decode_leaf_value(["run", "list", column], "here")


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


def splitting(pattern: str) -> Cuts:
    return Cuts(splits=Replication({pattern: "none"}).splits)


@pytest.mark.parametrize("cuts", [None, splitting("x/7/*"), splitting("x/*")], ids=["none", "below", "all"])
def test_a_template_fits_what_a_new_walk_would_find(cuts: Cuts | None) -> None:
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
    found = flatten({"x": NESTED["dicts"], "y": 1}, cuts=Cuts(splits=replication.splits))
    assert (len(found.values) > 2) is split


def test_the_order_of_entries_is_no_difference() -> None:
    one = [{"a": 1, "b": {"c": 2, "d": 3}}] * LEAST_ROWS
    other = [{"b": {"d": 3, "c": 2}, "a": 1}] * LEAST_ROWS
    assert encode_leaf_value(one, "") != encode_leaf_value(other, "")
    assert in_order(one) == in_order(other)
    assert in_order(one) != in_order([{"a": 1, "b": OrderedDict(c=2, d=3)}] * LEAST_ROWS)


# --- restored in place ------------------------------------------------------------------------------------------------


def changed(value: Any) -> Any:
    """The same containers, other values."""
    if isinstance(value, dict):
        return type(value)({key: changed(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([changed(item) for item in value])
    return 77


def containers(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list, tuple)):
        return []
    items = value.values() if isinstance(value, dict) else value
    below = [each for item in items for each in containers(item)]
    return below if isinstance(value, tuple) else [value, *below]


@pytest.mark.parametrize("name", [name for name in NESTED if name not in ("some", "deep")])
def test_every_live_container_stays_the_same_object(ck: deeppart.Checkpointer, name: str) -> None:
    state = {"x": NESTED[name]}
    ck.checkpoint(state, step=1).wait()
    live = changed(state)
    before = containers(live)
    ck.restore(live)
    assert difference(state, live) is None
    assert all(one is other for one, other in zip(before, containers(live), strict=True))


def test_lists_in_tuples_in_dicts_stay_the_same_objects() -> None:
    saved = [{"a": ([place], {"b": place}), "c": OrderedDict(x=[1]), "d": Counter("a")} for place in range(300)]
    live = changed(saved)
    before = containers(live)
    filled = [each for each, _ in places(live, saved)]
    assert {id(each) for each in filled} == {id(each) for each in before}
    assert fill(live, saved) is live
    assert difference(saved, live) is None
    assert all(one is other for one, other in zip(before, containers(live), strict=True))


@pytest.mark.parametrize(
    "live",
    [
        [],
        [[0]],
        [[0] * 20] + [[0] for _ in range(999)],
        [{"a": 1}] * 300,
        [(0,)] * 300,
        [None] * 300,
        [[[0]] for _ in range(300)],
        [1] * 20,
        None,
    ],
    ids=lambda live: f"{live!r:.20}",
)
def test_what_is_other_in_the_live_state_is_replaced(ck: deeppart.Checkpointer, live: Any) -> None:
    saved = [[place, place + 1] for place in range(300)]
    ck.checkpoint({"x": saved}, step=1).wait()
    state = {"x": live}
    ck.restore(state)
    assert difference({"x": saved}, state) is None
    assert live is None or state["x"] is live


def test_dicts_take_the_saved_entries_in_the_saved_order(ck: deeppart.Checkpointer) -> None:
    saved: Any = {"x": {place: OrderedDict(b=1, a=place) for place in range(300)}, "y": [{"a": 1, "b": 2}] * 300}
    ck.checkpoint(saved, step=1).wait()
    live: Any = {"x": {True: {"z": 1}} | {place: Counter("ab") for place in reversed(range(400))}}
    live["y"] = [{"b": 1, "c": 5} for _ in range(300)]
    row, counter = live["y"][3], live["x"][5]
    ck.restore(live)
    assert list(live["x"]) == list(range(300))
    assert live["y"][3] is row and live["x"][5] is counter
    assert [list(each) for each in (live["x"][5], row)] == [["b", "a"], ["a", "b"]]
    assert live["y"] == saved["y"] and all(dict(live["x"][key]) == dict(saved["x"][key]) for key in saved["x"])


REFUSED: dict[str, tuple[Any, Any]] = {
    "a value": (NESTED["lists"], 7),
    "a dict for a list": (NESTED["lists"], {"a": 1}),
    "a dict of rows for a list of rows": (NESTED["lists"], NESTED["table"]),
    "tensors for rows": (NESTED["lists"], [torch.ones(1)] * 300),
    "a tensor in a row": (NESTED["lists"], [[torch.ones(1)]] * 300),
    "rows for tensors": ([torch.ones(1)] * 300, NESTED["lists"]),
    "rows for rows with tensors": ([[torch.ones(2)]] * 300, NESTED["lists"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(ck: deeppart.Checkpointer, name: str) -> None:
    saved, live = REFUSED[name]
    ck.checkpoint({"bad": saved, "good": torch.ones(1)}, step=1).wait()
    state = {"bad": live, "good": torch.zeros(1)}
    with pytest.raises(StateError, match="bad"):
        ck.restore(state)
    assert not state["good"].any(), "nothing has been touched"


ALIASED: dict[str, tuple[dict[str, Any], Callable[[list[Any]], dict[str, Any]]]] = {
    "rows of one run": ({"x": [[1]] * 300}, lambda row: {"x": [row] * 300}),
    "a row and a run": (
        {"x": [[1] * 9] * 300, "y": [1] * 9},
        lambda row: {"x": [[0] * 9 for _ in range(299)] + [row], "y": row},
    ),
    "a row and a short list": (
        {"x": [[1]] * 300, "y": [1]},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": row},
    ),
    "rows of two runs": (
        {"x": [[1]] * 300, "y": [[1]] * 300},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": [row] + [[0] for _ in range(299)]},
    ),
}


@pytest.mark.parametrize("name", ALIASED)
@pytest.mark.parametrize("same", [True, False])
def test_one_live_row_at_several_places(ck: deeppart.Checkpointer, name: str, same: bool) -> None:
    saved, make = ALIASED[name]
    if not same:
        saved = saved | {"x": [*saved["x"][:-1], [2]]}
    ck.checkpoint(saved, step=1).wait()
    live = make([0])
    if same:
        ck.restore(live)
        assert difference(saved, live) is None
        return
    with pytest.raises(StructureMismatchError, match="several places"):
        ck.restore(live)


def test_a_state_that_is_a_tuple_of_rows(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint(tuple([place] for place in range(300)), step=1).wait()
    live = tuple([0] for _ in range(300))
    ck.restore(live)
    assert live == tuple([place] for place in range(300))
    with pytest.raises(StructureMismatchError, match="all tuples"):
        ck.restore(tuple((0,) for _ in range(300)))


def test_what_was_saved_item_by_item_meets_a_run_and_the_other_way_round(
    ck: deeppart.Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of before there were nested runs is what one is with a threshold that nothing reaches."""
    state = {"rows": [[place, "x"] for place in range(300)], "table": {place: {"a": [place]} for place in range(300)}}
    state["few"] = [{"a": 1}, {"b": (2, 3)}]
    for step, (saved, restored) in enumerate([(10**9, 256), (256, 10**9), (1, 10**9), (10**9, 1)]):
        monkeypatch.setattr("deeppart.state.runs.LEAST_ROWS", saved)
        ck.checkpoint(state, step=step).wait()
        monkeypatch.setattr("deeppart.state.runs.LEAST_ROWS", restored)
        live = changed(state)
        before = containers(live)
        assert ck.restore(live, step=step) == step
        assert difference(state, live) is None
        assert all(one is other for one, other in zip(before, containers(live), strict=True))
        assert difference(state, deeppart.load(ck.config.persistent_dir, step)) is None


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


def test_momentum_that_is_none_yet(ck: deeppart.Checkpointer) -> None:
    """Where the live state has None in a run, and tensors were saved, they are created."""
    ck.checkpoint({"s": {place: {"m": torch.ones(1)} for place in range(300)}}, step=1).wait()
    live: Any = {"s": {place: {"m": None} for place in range(300)}}
    row = live["s"][3]
    ck.restore(live)
    assert live["s"][3] is row and all(bool(each["m"] == 1) for each in live["s"].values())


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
    assert _json_value(rows)[0] == [["id", 0], ["tags", ["a"]]]


def test_a_run_does_not_share_its_rows_with_what_was_saved(ck: deeppart.Checkpointer) -> None:
    state = {"x": [[place] for place in range(300)]}
    pending = ck.checkpoint(state, step=1)
    state["x"][5][0] = -1
    pending.wait()
    assert deeppart.load(ck.config.persistent_dir)["x"][5] == [5]
