"""Many values in one column: golden encodings, any rows, and what nobody has written."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.errors import CorruptFileError
from deeppart.state.tree.runs import (
    LEAST_ROWS,
    MOST_LEVELS,
    decode_leaf_value,
    encode_leaf_value,
    is_run,
    run_levels,
    same_leaf_value,
)
from deeppart.testing.states import difference
from deeppart.testing.strategies import keys, values
from tests.golden.make_runs import make_runs
from tests.sampling import examples

GOLDEN = Path(__file__).parents[3] / "golden" / "structure-v3" / "runs.json"


def encoded_again(value: Any) -> Any:
    return json.loads(json.dumps(encode_leaf_value(value, "")))


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


# --- the encoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", make_runs())
def test_golden_encodings(name: str) -> None:
    run, golden = make_runs()[name], json.loads(GOLDEN.read_text())[name]
    assert difference(run, decode_leaf_value(golden, name)) is None
    assert encoded_again(run) == golden
    assert same_leaf_value(run, decode_leaf_value(golden, name))


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
