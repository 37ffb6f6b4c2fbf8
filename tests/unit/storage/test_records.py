"""Records of suspect steps, beside the steps; of runs with less protection: tests/unit/session/test_open.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import pytest

import deeppart
from deeppart.errors import StorageError
from deeppart.extension.export import export
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.part import encode_suspicion
from deeppart.recovery import suspect_lines
from deeppart.storage import Halt, PosixStore, Suspicions, committed_steps
from deeppart.storage.manifests import read_manifest
from tests.unit.cli_support import call, call_json, save
from tests.unit.suspicions import OTHER, RECORD, attempt


def test_a_request_to_halt_is_replaced_taken_back_and_ignored_if_it_cannot_be_understood(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    assert Halt.read(store) is None
    for halt in (Halt("a" * 32), Halt("b" * 32, 3, "2026-11-30T18:00:00.000000Z")):
        halt.write(store)
        assert Halt.read(store) == halt
    Halt.remove(store)
    assert Halt.read(store) is None
    for halt in (Halt("a", before="tonight"), Halt("a", after="soon")):  # type: ignore[arg-type]
        halt.write(store)
        assert Halt.read(store) is None


def test_a_record_is_created_once_and_read_by_all(tmp_path: Path) -> None:
    assert Suspicions.read(PosixStore(tmp_path)).records == ()
    Suspicions.write(PosixStore(tmp_path), RECORD)
    with pytest.raises(StorageError):
        Suspicions.write(PosixStore(tmp_path), RECORD)
    (tmp_path / f"suspect-{OTHER}-000001").write_bytes(encode_suspicion(RECORD))
    (tmp_path / f"suspect-{OTHER}-000002").write_bytes(b"deeppart-suspect")
    (tmp_path / "suspect-of-mine").write_bytes(b"")
    found = Suspicions.read(PosixStore(tmp_path))
    assert found.records == (RECORD,) and len(found.problems) == 2
    assert [leaf.path for leaf in found.of(attempt(8))] == ["a/b", "c"]


def test_the_commands_and_load_name_the_leaves(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    first, second, third = (
        read_manifest(PosixStore(tmp_path), key, None).attempt for key in committed_steps(PosixStore(tmp_path))
    )
    leaf = SuspectLeaf("model/weight", "rank 1 differs from rank 0", first.sequence, 1)
    Suspicions.write(PosixStore(tmp_path), Suspicion(second.lineage, second.session, third.sequence, 3, (2,), (leaf,)))
    expected = [
        {"path": "model/weight", "ranks": "rank 1 differs from rank 0", "after": first.sequence, "after_step": 1}
    ]
    listed = {step["step"]: step["suspect"] for step in call_json("ls", tmp_path)["steps"]}
    assert listed == {1: [], 2: expected, 3: []}
    assert "suspect: model/weight" in call("ls", tmp_path)
    for step in (1, 2, 3):
        found = expected if step == 2 else []
        assert call_json("show", tmp_path, "--step", step)["suspect"] == found
        assert call_json("verify", tmp_path, "--step", step)["steps"][0]["suspect"] == found
        assert ("suspect: model/weight" in call("show", tmp_path, "--step", step)) == (step == 2)
        assert ("is suspect: model/weight" in call("verify", tmp_path, "--step", step)) == (step == 2)
        assert ("is suspect" in call("explain", tmp_path, "--step", step)) == (step == 2)
    deeppart.load(tmp_path, step=3)
    export(tmp_path, tmp_path / "3.h5", step=3)
    with pytest.warns(deeppart.errors.SuspectStepWarning, match="model/weight"):
        deeppart.load(tmp_path, step=2)
    with pytest.warns(deeppart.errors.SuspectStepWarning, match="model/weight"):
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
    deeppart.load(tmp_path, step=3)  # of one rank: what cannot be read says nothing of it
    (line,) = suspect_lines(PosixStore(tmp_path), replace(third, world_size=2))
    assert line.startswith("step 3 may be suspect")
