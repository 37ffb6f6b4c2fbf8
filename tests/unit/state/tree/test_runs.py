"""Lists, tuples and large dicts of small values are one value each, to the last bit."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, StructureMismatchError, UnsupportedLeafError
from deeppart.offline.inspect.contents import read_contents
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.runs import (
    LEAST_ENTRIES,
    LEAST_ITEMS,
    LEAST_ROWS,
    decode_leaf_value,
    encode_leaf_value,
    is_run,
)
from deeppart.testing.states import difference

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
    encoded = json.loads(json.dumps(encode_leaf_value(value, "")))
    back = decode_leaf_value(encoded, "")
    assert difference(value, back) is None
    assert json.dumps(encode_leaf_value(back, "")) == json.dumps(encoded)


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
    encoded = encode_leaf_value(live, "")
    live[0] = 2.5
    assert decode_leaf_value(encoded, "") == [1.5] * 20


BAD: list[Any] = [
    ["run"],
    ["run", "set", ["i1", "AA=="]],
    ["run", "list"],
    ["run", "list", ["i4", "AAAA"]],
    ["run", "list", ["i4", "AA"]],
    ["run", "list", ["i3", "AAAA"]],
    ["run", "list", ["bool", "Ag=="]],
    ["run", "list", ["items", {"a": 1}]],
    ["run", "list", ["numpy", "O", "AAAAAAAAAAA="]],
    ["run", "list", ["numpy", "<U1", "AAAAAAAAAAA="]],
    ["run", "list", ["i1", "AA=="], ["i1", "AA=="]],
    ["run", "dict", ["i1", "AA=="]],
    ["run", "dict", ["i1", "AAA="], ["i1", "AAE="]],
    ["run", "dict", ["i1", "AAE="], ["i1", "AA=="]],
    ["run", "dict", ["items", [["run", "list", ["i1", "AA=="]]]], ["i1", "AA=="]],
    ["run", 7, ["i1", "AA=="]],
]


@pytest.mark.parametrize("encoded", BAD, ids=json.dumps)
def test_what_nobody_has_encoded_is_refused(encoded: Any) -> None:
    with pytest.raises(CorruptFileError):
        decode_leaf_value(encoded, "here")


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
            monkeypatch.setattr(f"deeppart.state.tree.runs.{name}", saved)
        ck.checkpoint(state, step=step).wait()
        for name in ("LEAST_ITEMS", "LEAST_ENTRIES"):
            monkeypatch.setattr(f"deeppart.state.tree.runs.{name}", restored)
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
    assert [leaf.path for leaf in read_contents(root, keys=["list/7"]).leaves()] == ["list"]
    assert [leaf.path for leaf in read_contents(root, keys=["*/1"]).leaves()] == ["list", "other", "few/1"]
    with pytest.raises(StructureMismatchError):
        read_contents(root, keys=["list/100"])
