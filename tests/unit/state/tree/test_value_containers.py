"""Lists, tuples and large dicts of plain values, to any depth, are one value each, to the last bit."""

from __future__ import annotations

import json
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeppart
from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.tree.value_containers import (
    LEAST_ENTRIES,
    LEAST_ITEMS,
    LEAST_ROWS,
    container_levels,
)
from deeppart.state.values import MOST_LEVELS, decode_value, encode_value, same_value
from tests.golden.make import FILES
from tests.golden.states import make_runs
from tests.sampling import examples
from tests.states import difference
from tests.strategies import keys, values

NAN = struct.unpack("<d", bytes.fromhex("0100000000f4ff7f"))[0]


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
    assert not container_levels(value)


def test_an_item_that_cannot_be_stored_is_named() -> None:
    record = np.zeros(1, dtype=[("a", "i4")])[0]
    with pytest.raises(UnsupportedLeafError, match="path x, item 7"):
        encode_value([1] * 7 + [record], "path x")


def test_a_million_values_take_a_bounded_multiple_of_their_bytes(tmp_path: Path) -> None:
    """Of the bytes that a pickle has: 4 of the integers, and of the files a step leaves, which hold them twice."""
    state = {"x": [place << 12 for place in range(1_000_000)]}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as ck:
        ck.checkpoint(state, step=1).wait()
    assert deeppart.load(tmp_path) == state
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4 * 8_000_000


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
    assert not container_levels(nest(MOST_LEVELS + 1))


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
    if not container_levels(many):
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
