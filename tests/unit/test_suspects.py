"""Records of suspect steps: their bytes, what they name, how long they stay, and what the commands say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import pytest
import xxhash

import deeppart
from deeppart.errors import CorruptFileError, FormatError, NewerFormatError, StorageError
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.offline.export import export
from deeppart.part import decode_suspicion, encode_suspicion
from deeppart.storage.persistent import committed_steps, read_manifest
from deeppart.storage.suspects import read_suspicions, write_suspicion
from tests.unit.cli_support import call, call_json, save

LINEAGE, SESSION, OTHER = "1" * 32, "2" * 32, "3" * 32
RECORD = Suspicion(
    LINEAGE,
    SESSION,
    9,
    190,
    (150, 160, 170, 180),
    (
        SuspectLeaf("a/b", "rank 1 differs from rank 0", 4, 140),
        SuspectLeaf("c", "every rank holds other bytes", 6, 160),
    ),
)


def attempt(sequence: int, session: str = SESSION) -> Attempt:
    return Attempt(LINEAGE, session, sequence, 100 + 10 * sequence, 2)


def test_what_is_suspect_and_what_is_not() -> None:
    paths = {sequence: [leaf.path for leaf in RECORD.leaves_of(attempt(sequence))] for sequence in range(3, 11)}
    assert paths == {3: [], 4: [], 5: ["a/b"], 6: ["a/b"], 7: ["a/b", "c"], 8: ["a/b", "c"], 9: [], 10: []}
    assert RECORD.leaves_of(attempt(7, OTHER)) == ()
    assert RECORD.leaves_of(replace(attempt(7), lineage=OTHER)) == ()


def test_bytes_of_a_record() -> None:
    data = encode_suspicion(RECORD)
    assert decode_suspicion(data, where="record") == RECORD
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises((CorruptFileError, NewerFormatError)):
            decode_suspicion(bytes(damaged), where="record")
        with pytest.raises(CorruptFileError):
            decode_suspicion(data[:at], where="record")
    with pytest.raises(CorruptFileError):
        decode_suspicion(data + b" ", where="record")


def sealed(document: object) -> bytes:
    body = json.dumps(document).encode()
    return f"deeppart-suspect 1 xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}\n".encode() + body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lineage", "x" * 32),
        ("session", None),
        ("sequence", -1),
        ("sequence", True),
        ("step", 2**63),
        ("steps", 5),
        ("steps", [1.5]),
        ("leaves", []),
        ("leaves", [1]),
        ("leaves", [{"path": "a", "ranks": "r", "after": 9, "after_step": 1}]),
        ("leaves", [{"path": "\udce4", "ranks": "r", "after": 1, "after_step": 1}]),
        ("leaves", [{"path": "a", "ranks": "r", "after": 1}]),
        ("more", 1),
    ],
)
def test_impossible_fields(name: str, value: object) -> None:
    document = json.loads(encode_suspicion(RECORD).split(b"\n", 1)[1])
    assert decode_suspicion(sealed(document), where="record") == RECORD
    with pytest.raises(CorruptFileError):
        decode_suspicion(sealed({**document, name: value}), where="record")


def test_nothing_impossible_is_written() -> None:
    with pytest.raises(FormatError):
        encode_suspicion(replace(RECORD, leaves=()))


@pytest.mark.parametrize("path", ["größe/重み", "\u202e", "a\nb", ""])
def test_leaves_of_any_name_are_put_on_record(path: str) -> None:
    record = replace(RECORD, leaves=(*RECORD.leaves, replace(RECORD.leaves[0], path=path)))
    data = encode_suspicion(record)
    assert data.isascii() and decode_suspicion(data, where="record") == record


def test_a_record_is_created_once_and_read_by_all(tmp_path: Path) -> None:
    assert read_suspicions(tmp_path).records == ()
    write_suspicion(tmp_path, RECORD)
    with pytest.raises(StorageError):
        write_suspicion(tmp_path, RECORD)
    (tmp_path / f"suspect-{OTHER}-000001").write_bytes(encode_suspicion(RECORD))
    (tmp_path / f"suspect-{OTHER}-000002").write_bytes(b"deeppart-suspect")
    (tmp_path / "suspect-of-mine").write_bytes(b"")
    found = read_suspicions(tmp_path)
    assert found.records == (RECORD,) and len(found.problems) == 2
    assert [leaf.path for leaf in found.of(attempt(8))] == ["a/b", "c"]


def test_the_commands_and_load_name_the_leaves(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    first, second, third = (read_manifest(tmp_path, key, None).attempt for key in committed_steps(tmp_path))
    leaf = SuspectLeaf("model/weight", "rank 1 differs from rank 0", first.sequence, 1)
    write_suspicion(tmp_path, Suspicion(second.lineage, second.session, third.sequence, 3, (2,), (leaf,)))
    expected = [{"path": "model/weight", "ranks": "rank 1 differs from rank 0", "compared_at_step": 1}]
    listed = {step["step"]: step["suspect"] for step in call_json("ls", tmp_path)["steps"]}
    assert listed == {1: [], 2: expected, 3: []}
    assert "suspect: model/weight" in call("ls", tmp_path)
    for step in (1, 2, 3):
        found = expected if step == 2 else []
        assert call_json("show", tmp_path, "--step", step)["suspect"] == found
        assert call_json("verify", tmp_path, "--step", step)["steps"][0]["suspect"] == found
        assert ("suspect: model/weight" in call("show", tmp_path, "--step", step)) == (step == 2)
        assert ("is suspect: model/weight" in call("verify", tmp_path, "--step", step)) == (step == 2)
        assert ("is suspect" in call("restore", tmp_path, "--dry-run", "--step", step)) == (step == 2)
    deeppart.load(tmp_path, step=3)
    export(tmp_path, tmp_path / "3.h5", step=3)
    with pytest.warns(deeppart.SuspectStepWarning, match="model/weight"):
        deeppart.load(tmp_path, step=2)
    with pytest.warns(deeppart.SuspectStepWarning, match="model/weight"):
        export(tmp_path, tmp_path / "2.h5", step=2)
    for step in (2, 3):
        with h5py.File(tmp_path / f"{step}.h5") as archive:
            assert ("suspect" in archive.attrs) == (step == 2)
    assert "is suspect: model/weight" in call("export", tmp_path, tmp_path / "x.h5", "--step", 2)
    document = call_json("export", tmp_path, tmp_path / "y.h5", "--step", 2)
    assert len(document["remarks"]) == 1 and "model/weight" in document["remarks"][0]
    (tmp_path / f"suspect-{OTHER}-000002").write_bytes(b"deeppart-suspect")
    assert call_json("verify", tmp_path)["unreadable_suspect_records"]
    assert call_json("show", tmp_path)["unreadable_suspect_records"] and "may be suspect" in call("show", tmp_path)
    assert call_json("ls", tmp_path)["problems"]
    with pytest.warns(deeppart.SuspectStepWarning, match="may be suspect"):
        deeppart.load(tmp_path, step=3)
