"""Every kind of damage, at every place, is found."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

import deeppart
from deeppart.errors import RestoreError
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.part import FileSource, PartReader
from deeppart.state.document.part_document import PartDocument
from tests.golden import forge as by_hand
from tests.unit.cli_support import call, call_json, flip, forge, manifest_path, part_path, save
from tests.unit.one_damage import names, one_damage


def test_every_region_of_a_part(tmp_path: Path) -> None:
    """One flipped byte anywhere is found, and nothing that is whole is called damaged."""
    forge(tmp_path, 1)
    part = part_path(tmp_path, 1, 1, 3)
    with FileSource(part) as source:
        chunks = PartReader(source, where="").chunks[["offset", "encoded_length"]].tolist()
    by_elimination = {"a", "rng", "position"}
    for offset in range(0, part.stat().st_size, 37):
        flip(part, offset)
        (subject,) = choose_steps(tmp_path)
        verdict = verify(subject)
        flip(part, offset)
        assert verdict.state == "damaged", offset
        (damage,) = verdict.damage
        inside = [place for place, length in chunks if place <= offset < place + length]
        assert damage.kind == ("chunk" if inside else "part"), offset
        found = {leaf.path for leaf in damage.leaves}
        assert found < by_elimination if inside else found == by_elimination, offset
    assert verify(choose_steps(tmp_path)[0]).state == "sound"


@pytest.mark.parametrize("length", [0, 100, 4096, 5000, -1, +1])
def test_wrong_length(length: int, tmp_path: Path) -> None:
    forge(tmp_path, 1)
    part = part_path(tmp_path, 1, 1, 3)
    size = part.stat().st_size
    os.truncate(part, size + length if abs(length) == 1 else length)
    damage = one_damage(tmp_path)
    assert (damage["kind"], damage["file"], damage["rank"]) == ("part", part.name, 1)
    assert ("longer than it was written" if length == 1 else "truncated") in damage["message"]
    leaves = [(leaf["path"], leaf["rank"], leaf["start"], leaf["stop"]) for leaf in damage["leaves"]]
    assert leaves == [("a", None, 1200, 2400), ("rng", 1, None, None), ("position", 1, None, None)]


def test_missing_parts(tmp_path: Path) -> None:
    forge(tmp_path, 1)
    part_path(tmp_path, 1, 0, 3).unlink()
    damage = one_damage(tmp_path)
    assert damage["message"] == "the part file is missing"
    assert names(damage) == {"a", "b", "rng", "position"}
    part_path(tmp_path, 1, 2, 3).unlink()
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    first, second, together = step["damage"]
    assert [leaf["rank"] for leaf in first["leaves"] + second["leaves"]] == [0, 0, 2, 2]
    assert together["message"] == "no sound part holds these bytes; they were in parts 0, 2"
    places = [(leaf["path"], leaf["start"], leaf["stop"]) for leaf in together["leaves"]]
    assert places == [("a", 0, 1200), ("a", 2400, 3600), ("b", 0, 800)]
    text = call("verify", tmp_path, code=1)
    assert "part-00000-of-00003.dpp: the part file is missing\n    rng (rank 0)\n" in text
    assert "6 leaves damaged" in text


def test_part_of_another_checkpoint(tmp_path: Path) -> None:
    forge(tmp_path, 1)
    forge(tmp_path, 2)
    part_path(tmp_path, 1, 1, 3).write_bytes(part_path(tmp_path, 2, 1, 3).read_bytes())
    damage = one_damage(tmp_path, "--step", 1)
    assert "another attempt" in damage["message"] and names(damage) == {"a", "rng", "position"}


def test_unreadable_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(tmp_path, 1)
    real = FileSource.read_into

    def fails(self: FileSource, offset: int, buffer: memoryview) -> None:
        if offset == 4096 and "part-00001" in self.path:
            raise deeppart.errors.StorageError("cannot read", errno=5, found="Input/output error")
        real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", fails)
    damage = one_damage(tmp_path)
    assert "Input/output error" in damage["message"] and damage["start"] == 4096 and names(damage) == {"a"}


def test_digest_of_the_whole_file(tmp_path: Path) -> None:
    forge(tmp_path, 1, record=lambda record: dataclasses.replace(record, digest="0" * 32))
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    assert [damage["kind"] for damage in step["damage"]] == ["digest"] * 3
    assert step["damaged_leaves"] == []


def test_manifests(tmp_path: Path) -> None:
    for step in range(1, 5):
        save(tmp_path, step)
    flip(manifest_path(tmp_path, 2), 250)
    manifest_path(tmp_path, 3).write_bytes(by_hand.seal({"new": "fields"}, version=10))
    manifest_path(tmp_path, 4).unlink()
    document = call_json("verify", tmp_path, "--all", code=1)
    assert [step["state"] for step in document["steps"]] == ["sound", "damaged", "newer", "unfinished"]
    assert "digest of the manifest does not hold" in document["steps"][1]["damage"][0]["message"]
    assert "format version 10" in document["steps"][2]["damage"][0]["message"]
    assert "no manifest" in call("verify", tmp_path, "--step", 4, code=1)
    # the newest commit is what is verified, not the newest that is sound
    assert [step["step"] for step in call_json("verify", tmp_path, code=1)["steps"]] == [3]


def test_documents_must_agree(tmp_path: Path) -> None:
    forge(tmp_path, 1, document=lambda structure: structure["leaves"][0].__setitem__(1, "int32"))
    assert "describes another state" in one_damage(tmp_path)["message"]
    forge(
        tmp_path,
        2,
        record=lambda record: dataclasses.replace(record, raw_bytes=record.raw_bytes + 4 * (record.rank == 1)),
    )
    damage = one_damage(tmp_path)
    assert damage["rank"] == 1 and "raw bytes, the manifest says" in damage["message"]


@pytest.mark.parametrize(
    "entry",
    [["torch", "float32", ["x"]], ["torch", [], [1]], ["torch", "float32", [1.5]], ["torch", "float32", [-1]], 7],
)
def test_a_document_that_makes_no_sense_is_damage(
    entry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every digest right, as only a crafted file has it: still no traceback."""
    meta = json.dumps({"leaves": {"2": entry}, "trees": []}).encode()
    with monkeypatch.context() as patch:
        patch.setattr(PartDocument, "meta", lambda self: meta)
        forge(tmp_path, 1)
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    assert [damage["kind"] for damage in step["damage"][:3]] == ["part"] * 3
    assert len(call_json("show", tmp_path, code=1)["problems"]) == 3


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        forge(tmp_path, step)
    with pytest.raises(RestoreError, match=r"there is no step 7\n  found: steps 1, 2, 3"):
        choose_steps(tmp_path, 7)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RestoreError, match="no step directory"):
        choose_steps(tmp_path / "empty")
    with pytest.raises(RestoreError, match="no such checkpoint directory"):
        choose_steps(tmp_path / "nowhere")
    with pytest.raises(RestoreError, match="a file of one step"):
        choose_steps(manifest_path(tmp_path, 1))
