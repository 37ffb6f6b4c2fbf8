"""What a checkpoint holds: its leaves, their types, and the parts that their bytes are in."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import deeppart
from deeppart.testing.states import difference
from tests.unit.cli_support import call, call_json, make_state, part_path, save

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
def test_a_glob_covers_what_is_below_a_container(keys: list[str], covered: list[str], tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt")) as checkpointer:
        checkpointer.checkpoint(NESTED, step=1).wait("persistent", timeout=200)
    assert list(leaves(tmp_path / "ckpt", *keys)) == covered
    loaded = deeppart.load(tmp_path / "ckpt", keys=keys)
    assert list(loaded) == list(dict.fromkeys(path.split("/")[0] for path in covered))
    if "model/inner/b" in covered and "model/a" in covered:
        assert difference(NESTED["model"], loaded["model"]) is None, "all of it, to what is empty"
    assert loaded.get("rows", [[7, "7"]]) == [[7, "7"]]
    out = tmp_path / "out.h5"
    call("export", tmp_path / "ckpt", out, *(each for key in keys for each in ("--keys", key)))
    with h5py.File(out) as file:
        assert sorted(file["state"]) == sorted(loaded)
