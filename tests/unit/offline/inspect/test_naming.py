"""Damaged bytes under the names of the leaves they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deeppart.part import FileSource, PartReader
from tests.unit.cli_support import call, flip, make_state, part_path, save
from tests.unit.one_damage import names, one_damage


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


def test_damage_in_compressed_chunks(tmp_path: Path) -> None:
    save(tmp_path, 1, compression="zstd")
    with FileSource(part_path(tmp_path, 1)) as source:
        reader = PartReader(source, where="")
        (first, *_) = np.flatnonzero(reader.chunks["codec"] != 0).tolist()
        offset = int(reader.chunks["offset"][first])
    flip(part_path(tmp_path, 1), offset + 9)
    assert one_damage(tmp_path)["start"] == offset
