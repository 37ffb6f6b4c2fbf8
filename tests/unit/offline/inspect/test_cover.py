"""Which bytes of which leaves are damaged, are held twice or by no part, and how they are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, DeeppartError
from tests.fuzz.images import PartImage
from tests.unit.cli_support import Spans, call, call_json, flip, forge, make_state, part_path, save
from tests.unit.one_damage import names, one_damage
from tests.unit.recovery.opened import edit_parts
from tests.unit.sharded_states import restore, rows
from tests.unit.sharded_states import save as save_ranks


def overlap(spans: Spans) -> None:
    spans[1].append((1, 0, 80))


def gap(spans: Spans) -> None:
    spans[0].remove((1, 0, 800))


def beyond(spans: Spans) -> None:
    spans[2].append((1, 800, 8))


@pytest.mark.parametrize(("change", "start", "stop"), [(overlap, 0, 80), (gap, 0, 800), (beyond, 800, 808)])
def test_cover(change: Any, start: int, stop: int, tmp_path: Path) -> None:
    """Parts whose digests all hold, but which an unsound writer cut wrongly."""
    forge(tmp_path, 1, spans=change)
    damage = one_damage(tmp_path)
    assert damage["kind"] == "cover"
    assert [(leaf["path"], leaf["start"], leaf["stop"]) for leaf in damage["leaves"]] == [("b", start, stop)]


@pytest.mark.parametrize("path", ["model/weight", "model/bias", "moments/0", "moments/1", "ids", "noise"])
def test_flipped_byte_names_its_leaf(path: str, tmp_path: Path) -> None:
    """The bytes of every leaf are looked up in the file: whoever lies between start and stop must be named."""
    save(tmp_path, 1)
    part, state = part_path(tmp_path, 1), make_state()
    contents = part.read_bytes()
    arrays = {
        "model/weight": state["model"]["weight"], "model/bias": state["model"]["bias"], "noise": state["noise"],
        "moments/0": state["moments"][0], "moments/1": state["moments"][1], "ids": state["ids"],
    }  # fmt: skip
    places = {}
    for name, array in arrays.items():
        raw = np.asarray(array).tobytes()
        places[name] = (contents.index(raw), len(raw))
    start, length = places[path]
    flip(part, start + length // 2)
    damage = one_damage(tmp_path)
    assert (damage["kind"], damage["file"], damage["rank"]) == ("chunk", part.name, 0)
    assert damage["start"] <= start + length // 2 < damage["stop"]
    expected: dict[str, tuple[int, int]] = {}
    for name, (first, size) in places.items():
        low, high = max(first, damage["start"]), min(first + size, damage["stop"])
        if low < high:
            expected[name] = (low - first, high - first)
    found = {leaf["path"]: (leaf["start"], leaf["stop"]) for leaf in damage["leaves"] if leaf["start"] is not None}
    tied = {"model/weight", "model/head"} if "model/weight" in expected else set()
    assert {name.replace("head", "weight"): place for name, place in found.items()} == expected
    assert names(damage) == expected.keys() | tied
    text = call("verify", tmp_path, code=1)
    assert f"{part.name}, bytes {damage['start']} to {damage['stop']}: the digest of a chunk does not hold" in text
    assert f"    {path}" in text or tied


WHOLE = torch.arange(70.0).view(7, 10)


def live(rank: int, add: float = 0.0) -> dict[str, Any]:
    w = rows(WHOLE + add, rank // 2, 2)
    return {"w": w, "head": w, "x": rows(WHOLE + add, rank, 4), "plain": torch.ones(30) + add}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of four ranks, of which two each hold the same rows."""
    save_ranks(tmp_path, [live(rank) for rank in range(4)])
    return tmp_path


def faults(root: Path) -> list[tuple[str, str]]:
    """Kind and message of all damage that verify finds; and nothing else accepts such a step."""
    (step,) = call_json("verify", root, "--all", code=1)["steps"]
    return [(each["kind"], each["message"]) for each in step["damage"]]


def lose_spans(rank: int, part: PartImage) -> None:
    """The spans of the last rank are of another leaf; its bytes stand in the part all the same."""
    if rank == 3:
        for row in part.spans:
            row["leaf"] = 0 if row["box"] == 3 else row["leaf"]


def of_box(box: int) -> Callable[[int, PartImage], None]:
    def edit(rank: int, part: PartImage) -> None:
        if rank == 3:
            for row in part.spans:
                row["box"] = box if row["box"] == 3 else row["box"]

    return edit


EDITS: dict[str, tuple[Callable[[int, PartImage], None], str]] = {
    "a shard that is of another leaf": (lose_spans, "every byte exactly once"),
    "a shard that is another one": (of_box(1), "every byte exactly once"),
    "a shard beyond the tensor": (of_box(4), "in a box that it does not have"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_lacks_is_named_and_nobody_restores_it(root: Path, name: str) -> None:
    edit, text = EDITS[name]
    edit_parts(root, edit)
    found = faults(root)
    assert any(text in message for _, message in found), found
    with pytest.raises(CorruptFileError):
        deeppart.load(root)
    states = [live(rank, 1.0) for rank in range(2)]
    with pytest.raises(DeeppartError):
        restore(root, states)
    assert torch.equal(states[0]["plain"], torch.ones(30) + 1), "nothing was touched"


def test_a_part_that_cannot_be_read_is_told_with_the_shards_that_lack_it(root: Path) -> None:
    part_path(root, 1, 2, 4).unlink()
    (step,) = call_json("verify", root, "--all", code=1)["steps"]
    (damage,) = step["damage"]
    assert damage["kind"] == "part"
    found = {leaf["path"]: leaf for leaf in damage["leaves"]}
    assert found["x"]["box"] == {"offset": [4, 0], "sizes": [2, 10]} and found["x"]["stop"] == 80
    assert found["plain"]["box"] is None
    assert "    x [4:6, 0:10], bytes 0 to 80" in call("verify", root, "--all", code=1)
