"""``deeppart verify``: every kind of damage, at every place, under the names of the leaves it hits."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import deeppart
from deeppart.cli.output import PlainConsole
from deeppart.offline.inspect.choosing import choose_steps
from deeppart.offline.inspect.cover import Fault, find_faults
from deeppart.offline.inspect.verifying import verify
from deeppart.part import SPAN_DTYPE, FileSource, PartReader
from deeppart.state.document import PartDocument
from tests.golden import forge as by_hand
from tests.unit.cli_support import Spans, call, call_json, flip, forge, make_state, manifest_path, part_path, save

DAMAGE_KEYS = {"kind", "message", "file", "part", "start", "stop", "leaves"}


def one_damage(*arguments: object) -> dict[str, Any]:
    """The only thing that is wrong."""
    document = call_json("verify", *arguments, code=1)
    assert document["good"] is False
    (step,) = document["steps"]
    damage: dict[str, Any]
    (damage,) = step["damage"]
    assert damage.keys() == DAMAGE_KEYS
    assert step["damaged_leaves"] == [
        leaf["path"] if leaf["rank"] is None else f"{leaf['path']} (rank {leaf['rank']})" for leaf in damage["leaves"]
    ]
    return damage


def names(damage: dict[str, Any]) -> set[str]:
    return {leaf["path"] for leaf in damage["leaves"]}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sound(compression: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 2, compression=compression)
    document = call_json("verify", tmp_path, "--all")
    assert document.keys() == {
        *("directory", "good", "nodes", "owner", "repairs", "signatures_checked", "steps", "unreadable_suspect_records")
    }
    assert document["good"] is True
    for step in document["steps"]:
        size = part_path(tmp_path, step["step"]).stat().st_size
        assert (step["state"], step["parts"], step["bytes"], step["damage"]) == ("sound", 1, size, [])
        assert step["raw_bytes"] == 1_280_000 + 4_800_000 + 400 + 28 + 400 + 120
    assert [step["step"] for step in call_json("verify", tmp_path)["steps"]] == [2]
    assert [step["step"] for step in call_json("verify", tmp_path, "--step", 1)["steps"]] == [1]
    text = call("verify", tmp_path)
    assert text.startswith("step 2  sound  1 part, ") and "B/s" in text


def test_usage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert "exclude each other" in call("verify", tmp_path, "--step", 1, "--all", code=2)
    assert "there is no step 9" in call("verify", tmp_path, "--step", 9, code=1)


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
    assert (damage["kind"], damage["file"], damage["part"]) == ("chunk", part.name, 0)
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


def test_all_damage_is_listed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    part, state = part_path(tmp_path, 1), make_state()
    contents = part.read_bytes()
    for array in (state["model"]["weight"], state["moments"][0], state["ids"]):
        flip(part, contents.index(array.numpy().tobytes()))
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    assert [damage["kind"] for damage in step["damage"]] == ["chunk"] * 3
    assert {"model/weight", "moments/0", "ids"} <= set(step["damaged_leaves"])
    assert step["bytes"] == len(contents)


def test_damage_in_compressed_chunks(tmp_path: Path) -> None:
    save(tmp_path, 1, compression="zstd")
    with FileSource(part_path(tmp_path, 1)) as source:
        reader = PartReader(source, where="")
        (first, *_) = np.flatnonzero(reader.chunks["codec"] != 0).tolist()
        offset = int(reader.chunks["offset"][first])
    flip(part_path(tmp_path, 1), offset + 9)
    assert one_damage(tmp_path)["start"] == offset


@pytest.mark.parametrize("length", [0, 100, 4096, 5000, -1, +1])
def test_wrong_length(length: int, tmp_path: Path) -> None:
    forge(tmp_path, 1)
    part = part_path(tmp_path, 1, 1, 3)
    size = part.stat().st_size
    os.truncate(part, size + length if abs(length) == 1 else length)
    damage = one_damage(tmp_path)
    assert (damage["kind"], damage["file"], damage["part"]) == ("part", part.name, 1)
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
            raise deeppart.StorageError("cannot read", errno=5, found="Input/output error")
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
    manifest_path(tmp_path, 3).write_bytes(by_hand.seal({"new": "fields"}, version=4))
    manifest_path(tmp_path, 4).unlink()
    document = call_json("verify", tmp_path, "--all", code=1)
    assert [step["state"] for step in document["steps"]] == ["sound", "damaged", "newer", "unfinished"]
    assert "digest of the manifest does not hold" in document["steps"][1]["damage"][0]["message"]
    assert "format version 4" in document["steps"][2]["damage"][0]["message"]
    assert "no manifest" in call("verify", tmp_path, "--step", 4, code=1)
    # the newest commit is what is verified, not the newest that is sound
    assert [step["step"] for step in call_json("verify", tmp_path, code=1)["steps"]] == [3]


def test_newer_structure(tmp_path: Path) -> None:
    forge(tmp_path, 1, document=lambda structure: structure.update(version=99))
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    assert step["state"] == "newer"


def test_unfinished_is_no_failure_while_a_job_runs(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    manifest_path(tmp_path, 2).unlink()
    call("verify", tmp_path, "--all", code=1)
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))):
        assert "in use by" in call("verify", tmp_path, "--all")
        assert call_json("verify", tmp_path, "--all")["good"] is True


def test_removed_meanwhile_is_no_damage(tmp_path: Path) -> None:
    forge(tmp_path, 1)
    (subject,) = choose_steps(tmp_path)
    part_path(tmp_path, 1, 2, 3).unlink()
    manifest_path(tmp_path, 1).unlink()
    verdict = verify(subject)
    assert (verdict.state, verdict.damage) == ("removed", ())


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


def test_documents_must_agree(tmp_path: Path) -> None:
    forge(tmp_path, 1, document=lambda structure: structure["leaves"][0].__setitem__(1, "int32"))
    assert "describes another state" in one_damage(tmp_path)["message"]
    forge(
        tmp_path,
        2,
        record=lambda record: dataclasses.replace(record, raw_bytes=record.raw_bytes + 4 * (record.rank == 1)),
    )
    damage = one_damage(tmp_path)
    assert damage["part"] == 1 and "raw bytes, the manifest says" in damage["message"]


@pytest.mark.parametrize(
    "entry",
    [["torch", "float32", ["x"]], ["torch", [], [1]], ["torch", "float32", [1.5]], ["torch", "float32", [-1]], 7],
)
def test_a_document_that_makes_no_sense_is_damage(
    entry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every digest right, as only a crafted file has it: still no traceback."""
    meta = json.dumps({"leaves": {"2": entry}, "values": {}}).encode()
    with monkeypatch.context() as patch:
        patch.setattr(PartDocument, "meta", lambda self: meta)
        forge(tmp_path, 1)
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    assert [damage["kind"] for damage in step["damage"][:3]] == ["part"] * 3
    assert len(call_json("show", tmp_path, code=1)["problems"]) == 3


def test_find_faults_against_counting() -> None:
    """Random spans: gaps and extras are exactly the bytes held by none, or by one too many."""
    random = np.random.default_rng(1)
    for _ in range(300):
        sizes = random.integers(0, 12, size=4).astype(np.uint64)
        numbers = random.integers(1, 6, size=(random.integers(0, 8), 3)).tolist()
        table = np.array([(leaf, 0, start, length, 0) for leaf, start, length in numbers], dtype=SPAN_DTYPE)
        counts = np.zeros((6, 12), dtype=int)
        for leaf, start, length in numbers:
            counts[leaf, start : start + length] += 1
        found = {"gap": np.zeros_like(counts), "extra": np.zeros_like(counts)}
        for fault in find_faults(sizes, [table[: len(table) // 2], table[len(table) // 2 :]]):
            found[fault.kind][fault.leaf, fault.start : fault.stop] += 1
        inside = np.arange(12) < np.append(sizes, [0, 0]).astype(int)[:, None]
        assert np.array_equal(found["gap"], inside & (counts == 0))
        assert np.array_equal(found["extra"] > 0, counts > inside)


def test_find_faults_examples() -> None:
    sizes = np.array([10, 0], dtype=np.uint64)
    spans = np.array([(0, 0, 0, 4, 0), (0, 0, 6, 4, 4)], dtype=SPAN_DTYPE)
    assert find_faults(sizes, [spans]) == [Fault(0, 4, 6, "gap")]
    assert find_faults(sizes, [spans[:1], spans]) == [Fault(0, 0, 4, "extra"), Fault(0, 4, 6, "gap")]
    assert find_faults(np.zeros(0, dtype=np.uint64), []) == []


def test_progress_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    assert "━" not in call("verify", tmp_path)
    monkeypatch.setattr("deeppart.cli.verify.console", lambda: PlainConsole(force_terminal=True, width=100))
    text = click.unstyle(call("verify", tmp_path))
    bar = text[text.rindex("step 1 ━") :]
    assert "6.1/6.1 MB" in bar and "B/s" in bar and "0:00:00" in bar
    assert "\x1b[" not in call("verify", tmp_path, "--json")


def test_long_lists_are_cut(tmp_path: Path) -> None:
    state = {f"leaf {i}": np.full(3, i) for i in range(50)}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait("persistent", timeout=200)
    part_path(tmp_path, 1).unlink()
    assert "    and 30 more leaves; --json lists all\n  50 leaves damaged\n" in call("verify", tmp_path, code=1)
    assert len(one_damage(tmp_path)["leaves"]) == 50
