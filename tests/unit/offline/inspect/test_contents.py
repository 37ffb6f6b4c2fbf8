"""What a checkpoint holds: its leaves, their types, and the parts that their bytes are in."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import deeppart
from deeppart.offline import Leaf, read_contents
from tests.states import difference
from tests.unit.cli_support import call, call_json, forge, make_state, part_path, save, save_states

Point = namedtuple("Point", "x y")


def leaves(*arguments: object, code: int = 0) -> dict[str, Any]:
    return {leaf["path"]: leaf for leaf in call_json("show", *arguments, code=code)["leaves"]}


def test_every_leaf_with_type_and_place(tmp_path: Path) -> None:
    save(tmp_path, 1)
    document = call_json("show", tmp_path)
    found = {leaf["path"]: leaf for leaf in document["leaves"]}
    # as saved: in the order of the dict, nested as it was
    assert list(found) == [
        "model/weight", "model/head", "model/bias", "moments/0", "moments/1", "ids", "noise", "empty", "step", "rate",
        "not a number", "big", "a~1b/0", "a~1b/1", "a~1b/2",
    ]  # fmt: skip
    state = make_state()
    aliases = {path: leaf["alias_of"] for path, leaf in found.items() if leaf.get("alias_of")}
    assert aliases in ({"model/head": "model/weight"}, {"model/weight": "model/head"})
    for path, live in (("model/weight", state["model"]["weight"]), ("ids", state["ids"]), ("empty", state["empty"])):
        leaf = found[path]
        dtype = str(live.dtype).removeprefix("torch.")
        assert leaf["type"] == {"kind": "torch", "dtype": dtype, "shape": list(live.shape)}
        assert leaf["nbytes"] == live.numel() * live.element_size()
        assert leaf["holdings"] == ([{"rank": 0, "start": 0, "length": leaf["nbytes"]}] if leaf["nbytes"] else [])
        assert leaf["per_rank"] is None
    assert found["noise"]["type"] == {"kind": "numpy", "dtype": "<f8", "shape": [3, 5]}
    assert found["step"] == {"kind": "value", "path": "step", "type": "int", "value": 12, "per_rank": None}
    values = {path: leaf["value"] for path, leaf in found.items() if leaf["kind"] == "value"}
    assert values["rate"] == 1e-3 and values["not a number"] == "nan" and values["big"] == hex(1 << 70)
    assert [values[f"a~1b/{i}"] for i in range(3)] == [None, "text", "torch.bfloat16"]
    stored = 320_000 * 4 + 400 + 1_200_000 * 4 + 28 + 400 + 120
    assert document["totals"] == {
        "leaves": 8,
        "values": 7,
        "replicated_bytes": stored,
        "sharded_bytes": 0,
        "per_rank_bytes": 0,
        "file_bytes": part_path(tmp_path, 1).stat().st_size,
        "referenced_bytes": 0,
    }


NESTED: dict[str, Any] = {
    "model": {"a": torch.ones(2), "inner": {"b": torch.ones(3), "none": {}}},
    "modem": torch.zeros(1),
    "best": None,
    "point": Point(torch.ones(1), 2),
    "rows": [[place, str(place)] for place in range(300)],
    "word": {"model": torch.ones(1)},
}


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_states(tmp_path_factory.mktemp("nested"), NESTED)


@pytest.mark.parametrize(
    ("keys", "covered"),
    [
        (["model"], ["model/a", "model/inner/b"]),
        (["model/*"], ["model/a", "model/inner/b"]),
        (["model/inner"], ["model/inner/b"]),
        (["mode[lm]"], ["model/a", "model/inner/b", "modem"]),
        (["best/*"], ["best"]),
        (["best", "poin?"], ["best", "point/x", "point/y"]),
        (["rows/7"], ["rows"]),
        (["rows/7/*"], ["rows"]),
        (["*/model"], ["word/model"]),
    ],
)
def test_a_glob_covers_what_is_below_a_container(
    nested: Path, keys: list[str], covered: list[str], tmp_path: Path
) -> None:
    assert list(leaves(nested, *keys)) == covered
    loaded = deeppart.load(nested, keys=keys)
    assert list(loaded) == list(dict.fromkeys(path.split("/")[0] for path in covered))
    if "model/inner/b" in covered and "model/a" in covered:
        assert difference(NESTED["model"], loaded["model"]) is None, "all of it, to what is empty"
    assert loaded.get("rows", [[7, "7"]]) == [[7, "7"]]
    out = tmp_path / "out.h5"
    call("export", nested, out, *(each for key in keys for each in ("--keys", key)))
    with h5py.File(out) as file:
        assert sorted(file["state"]) == sorted(loaded)


# --- statistics of leaves: which leaf and which rank they are of ---


def test_each_leaf_has_its_own(tmp_path: Path) -> None:
    save(tmp_path, 1)
    told: list[tuple[int, int]] = []
    contents = read_contents(tmp_path, None, (), None, lambda done, total: told.append((done, total)))
    state = make_state()
    live = {"model/bias": state["model"]["bias"], "moments/0": state["moments"][0], "ids": state["ids"]}
    live |= {"model/weight": state["model"]["weight"], "model/head": state["model"]["head"]}
    for leaf in contents.leaves:
        if isinstance(leaf, Leaf) and leaf.path in live:
            found = leaf.stats
            assert found is not None and found.elements == live[leaf.path].numel()
            assert (found.min, found.max) == (live[leaf.path].min().item(), live[leaf.path].max().item())
    assert told[-1][0] == told[-1][1] and contents.problems == ()


def test_of_each_rank(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    contents = read_contents(tmp_path, None, (), None, lambda done, total: None)
    leaves = {leaf.path: leaf for leaf in contents.leaves if isinstance(leaf, Leaf)}
    found, whole = leaves["rng"].stats_per_rank, leaves["a"].stats
    assert found is not None and leaves["rng"].stats is None
    assert [(each.min, each.max, each.elements) for each in found.values() if each] == [
        (0, 0, 16),
        (1, 1, 16),
        (2, 2, 16),
    ]
    assert whole is not None and (whole.elements, whole.max) == (900, 899.0)
