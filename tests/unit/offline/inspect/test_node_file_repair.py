"""Repairing node files: what is sound stays, what is damaged comes from elsewhere, and the rest is not made worse."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import deeppart
from deeppart.errors import CorruptFileError, StorageError
from deeppart.model import Manifest, PartRecord
from deeppart.offline.inspect.choosing import choose_steps
from deeppart.offline.inspect.node_file_repair import DamagedNodeFile
from deeppart.offline.inspect.verifying import VerifyResult, verify
from deeppart.part import FileSource, decode_manifest, parse_section_path, read_table
from deeppart.storage.exclusive import Kept
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.steps import list_steps
from tests.unit.cli_support import call, call_json, flip, forge, manifest_path, save, step_dir
from tests.unit.node_files import gather

MIB = 1 << 20


@dataclass
class Case:
    """A checkpoint of four ranks on two nodes, and the parts as they are elsewhere."""

    root: Path
    file: Path
    manifest: Manifest
    parts: dict[int, bytes]

    @property
    def damaged(self) -> DamagedNodeFile:
        return DamagedNodeFile(self.file, self.manifest.attempt, self.manifest.parts[:2], None)

    def elsewhere(self, *ranks: int) -> Callable[[PartRecord], tuple[Iterable[bytes], str]]:
        """There are sound copies of these alone."""

        def get(record: PartRecord) -> tuple[Iterable[bytes], str]:
            if record.rank not in ranks:
                raise CorruptFileError("there is no sound copy")
            return [self.parts[record.rank][:100], self.parts[record.rank][100:]], f"copy {record.rank}"

        return get

    def verdict(self) -> VerifyResult:
        (subject,) = choose_steps(self.root)
        return verify(subject)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    forge(tmp_path, 1, ranks=4)
    directory = step_dir(tmp_path, 1)
    parts = {rank: (directory / f"part-{rank:05d}-of-00004.dpp").read_bytes() for rank in range(4)}
    file, _ = gather(directory, 2)
    path = manifest_path(tmp_path, 1)
    return Case(tmp_path, file, decode_manifest(path.read_bytes(), where="manifest"), parts)


def test_a_sound_one_is_left_alone(case: Case) -> None:
    assert case.verdict().state == "sound"
    before = case.file.stat()
    assert case.damaged.repair(case.elsewhere(0, 1)) == {}
    assert case.file.stat().st_ino == before.st_ino and len(os.listdir(case.file.parent)) == 3


@pytest.mark.parametrize("offset", [20, 4100, MIB + 20, MIB + 4100, -1, -70, -100])
def test_one_byte(case: Case, offset: int) -> None:
    """In the first section, in the second, in table or footer."""
    sound = case.file.read_bytes()
    flip(case.file, offset % len(sound))
    assert case.verdict().state == "damaged"
    outcomes = case.damaged.repair(case.elsewhere(0, 1))
    assert all(isinstance(outcome, str) for outcome in outcomes.values())
    assert case.file.read_bytes() == sound and len(os.listdir(case.file.parent)) == 3
    if offset < 0:  # both sections are found without the table
        assert set(outcomes) == {0, 1} and all("the file itself" in str(outcome) for outcome in outcomes.values())
    else:
        assert outcomes == {offset // MIB: f"copy {offset // MIB}"}


def test_a_file_that_is_gone(case: Case) -> None:
    sound = case.file.read_bytes()
    case.file.unlink()
    assert case.verdict().damage[0].message == "the part file is missing"
    assert isinstance(case.damaged.repair(case.elsewhere())[0], CorruptFileError)
    assert len(os.listdir(case.file.parent)) == 2, "nothing of it is anywhere"
    outcomes = case.damaged.repair(case.elsewhere(0))
    assert outcomes[0] == "copy 0" and isinstance(outcomes[1], CorruptFileError)
    assert [damage.rank for damage in case.verdict().damage] == [1], "what there is a copy of is there again"
    assert case.damaged.repair(case.elsewhere(0, 1)) == {1: "copy 1"}
    assert case.file.read_bytes() == sound


@pytest.mark.parametrize("what", ["chunk", "header", "cut"])
def test_a_sound_section_is_kept_where_table_and_another_are_damaged(case: Case, what: str) -> None:
    """There is no copy of anything."""
    data = case.file.read_bytes()
    if what == "cut":
        case.file.write_bytes(data[: MIB + 200])
    else:
        flip(case.file, len(data) - 1)
        flip(case.file, MIB + (4100 if what == "chunk" else 3))
    assert {0, 1} <= {damage.rank for damage in case.verdict().damage}
    outcomes = case.damaged.repair(case.elsewhere())
    assert "the file itself" in str(outcomes[0]) and isinstance(outcomes[1], CorruptFileError)
    assert {damage.rank for damage in case.verdict().damage} == {1}


def test_what_has_no_copy_stays_as_it_is(case: Case) -> None:
    """Its sound chunks can still be read, and so can the other sections."""
    flip(case.file, 4100)
    flip(case.file, MIB + 4100)
    outcomes = case.damaged.repair(case.elsewhere(1))
    assert isinstance(outcomes[0], CorruptFileError) and outcomes[1] == "copy 1"
    verdict = case.verdict()
    assert [(damage.kind, damage.rank) for damage in verdict.damage] == [("chunk", 0)]
    before = case.file.stat().st_ino
    assert isinstance(case.damaged.repair(case.elsewhere())[0], CorruptFileError)
    assert case.file.stat().st_ino == before, "nothing that could be repaired: nothing is written"


def test_a_damaged_table_is_made_again_for_sections_that_are_all_damaged(case: Case) -> None:
    """Their sound chunks can be read then."""
    for offset in (4100, MIB + 4100, case.file.stat().st_size - 1):
        flip(case.file, offset)
    assert all(isinstance(outcome, CorruptFileError) for outcome in case.damaged.repair(case.elsewhere()).values())
    assert {(damage.kind, damage.rank) for damage in case.verdict().damage} == {("chunk", 0), ("chunk", 1)}


def test_damaged_table_and_section_at_once(case: Case) -> None:
    sound = case.file.read_bytes()
    flip(case.file, len(sound) - 1)
    flip(case.file, 4100)
    outcomes = case.damaged.repair(case.elsewhere(0))
    assert outcomes[0] == "copy 0" and "the file itself" in str(outcomes[1])
    assert case.file.read_bytes() == sound


def test_a_table_that_leads_elsewhere_is_no_truth(case: Case) -> None:
    """Sections exchanged, with a table that is sound in itself: the headers tell, and the manifest."""
    data = bytearray(case.file.read_bytes())
    length = min(len(case.parts[0]), len(case.parts[1]))
    data[:length], data[MIB : MIB + length] = data[MIB : MIB + length], data[:length]
    case.file.write_bytes(data)
    assert {damage.rank for damage in case.verdict().damage if damage.kind == "part"} == {0, 1}
    outcomes = case.damaged.repair(case.elsewhere(0, 1))
    assert outcomes[0] == "copy 0" and "the file itself" in str(outcomes[1]), "the shorter one has moved as a whole"
    assert case.verdict().state == "sound"


def test_a_copy_that_is_none_is_not_put_in_place(case: Case) -> None:
    flip(case.file, 4100)
    damaged = case.file.read_bytes()
    case.parts[0] = case.parts[0][:-1] + b"x"
    with pytest.raises(CorruptFileError, match="changed while it was copied"):
        case.damaged.repair(case.elsewhere(0))
    assert case.file.read_bytes() == damaged and len(os.listdir(case.file.parent)) == 3


def test_storage_that_refuses(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(case.file, 4100)
    damaged = case.file.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StorageError):
        case.damaged.repair(case.elsewhere(0))
    monkeypatch.undo()
    assert case.file.read_bytes() == damaged and len(os.listdir(case.file.parent)) == 3


# --- reads that fail --------------------------------------------------------------------------------------------------


def refuse_reads(
    monkeypatch: pytest.MonkeyPatch, file: Path, where: Callable[[int, int], bool], times: int = 1 << 30
) -> None:
    """Reads of this file, now, whose range is one of those fail with EIO, so many times."""
    real, inode, left = os.preadv, file.stat().st_ino, [times]

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if os.fstat(fd).st_ino == inode and left[0] and where(offset, offset + sum(map(len, buffers))):
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


def test_a_bad_sector_in_a_section_without_a_copy_costs_that_sector(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file, of which more may be read another time, is kept."""
    sound, bad = case.file.read_bytes(), MIB + 4100
    flip(case.file, 4100)
    damaged = case.file.read_bytes()
    with monkeypatch.context() as patch:
        refuse_reads(patch, case.file, lambda start, stop: start <= bad < stop)
        with Kept(case.file) as kept:
            outcomes = case.damaged.repair(case.elsewhere(0), kept.keep)
    assert outcomes[0] == "copy 0" and isinstance(outcomes[1], CorruptFileError)
    block = slice(MIB + 4096, min(MIB + 8192, MIB + len(case.parts[1])))
    zeros = bytes(block.stop - block.start)
    assert case.file.read_bytes() == sound[: block.start] + zeros + sound[block.stop :]
    assert kept.name is not None and kept.name.read_bytes() == damaged
    PersistentLevel(case.root).remove(set(list_steps(case.root)))
    assert not case.file.parent.exists(), "what was kept goes with the step"


@pytest.mark.parametrize("times", [1, 2, 5])
def test_reads_that_fail_in_passing_cost_nothing(case: Case, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """It is repaired, or stays, for the next time."""
    sound = case.file.read_bytes()
    flip(case.file, 4100)
    with monkeypatch.context() as patch, contextlib.suppress(StorageError):
        refuse_reads(patch, case.file, lambda start, stop: start >= MIB, times)
        assert case.damaged.repair(case.elsewhere(0))[0] == "copy 0"
    if times > 2:
        assert {damage.rank for damage in case.verdict().damage} == {0}
        assert case.damaged.repair(case.elsewhere(0)) == {0: "copy 0"}
    assert case.file.read_bytes() == sound and len(os.listdir(case.file.parent)) == 3


def test_a_section_that_cannot_be_read_at_all_and_has_no_copy_stays(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = case.file.read_bytes()
    flip(case.file, 4100)
    with monkeypatch.context() as patch:
        refuse_reads(patch, case.file, lambda start, stop: stop > MIB)
        with pytest.raises(StorageError, match="cannot read"):
            case.damaged.repair(case.elsewhere(0))
        assert len(os.listdir(case.file.parent)) == 3
        assert case.damaged.repair(case.elsewhere(0, 1)) == {0: "copy 0", 1: "copy 1"}, "nothing of it is needed"
    assert case.file.read_bytes() == sound


def test_a_file_that_cannot_be_opened_now_stays(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    before = case.file.stat().st_ino
    with monkeypatch.context() as patch:
        refuse_reads(patch, case.file, lambda start, stop: True)
        with pytest.raises(StorageError):
            case.damaged.repair(case.elsewhere(0))
    assert case.file.stat().st_ino == before and case.verdict().state == "sound"


# --- the commands -----------------------------------------------------------------------------------------------------


def node_file(root: Path) -> Path:
    (path,) = step_dir(root, 2).glob("node-*")
    return path


def test_verify_repairs_from_the_node(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, files="node")
    path = node_file(root)
    sound = path.read_bytes()
    for offset in (100, 5000, len(sound) - 1):
        flip(path, offset)
        (step,) = call_json("verify", root, code=1)["steps"]
        assert step["state"] == "damaged"
        assert step["damage"][0]["file"] == "node-00000-of-00001.dpn/part-00000-of-00001.dpp"
        repaired = call_json("verify", root, "--local", local, "--repair")["repairs"]
        assert [each["repaired"] for each in repaired] == [True], repaired
        assert path.read_bytes() == sound
    assert call_json("verify", root, "--all")["good"]
    plan = call_json("explain", root)
    assert plan["step"] == 2 and "persistent" in json.dumps(plan)
    flip(path, 5000)
    assert call_json("explain", root)["step"] == 2, "it looks at indexes, not at all bytes"
    flip(path, 100)
    assert call_json("explain", root)["step"] == 1
    flip(path, 100)
    assert "there is no sound copy" in call("verify", root, "--repair", code=1)


def test_a_part_on_a_node_is_repaired_from_a_section(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, files="node", keep_local=1)
    (path,) = local.glob("*/step-000000000002-*/part-*")
    sound = path.read_bytes()
    flip(path, 5000)
    repaired = call_json("verify", root, "--local", local, "--repair")["repairs"]
    assert [each["repaired"] for each in repaired] == [True] and "node-00000-of-00001.dpn" in repaired[0]["source"]
    assert path.read_bytes() == sound


def test_every_command_on_node_files(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=4)
    forge(tmp_path, 2, ranks=4)
    for step in (1, 2):
        gather(step_dir(tmp_path, step), 2)
    listed = call_json("ls", tmp_path)["steps"]
    assert [(step["state"], step["places"][0]["parts"]) for step in listed] == [("complete", [0, 1, 2, 3])] * 2
    assert call_json("verify", tmp_path, "--all")["good"]
    assert call("show", tmp_path) and deeppart.load(tmp_path)["a"].tolist() == list(range(900))
    call("export", tmp_path, tmp_path / "out.h5")
    manifest_path(tmp_path, 2).unlink()
    listed = call_json("ls", tmp_path)["steps"]
    assert (listed[1]["state"], listed[1]["places"][0]["parts"]) == ("unfinished", [0, 1, 2, 3])
    (file, _) = sorted(step_dir(tmp_path, 2).glob("node-*"))
    flip(file, file.stat().st_size - 1)
    assert call_json("ls", tmp_path)["steps"][1]["places"][0]["parts"] == [2, 3]
    call("prune", tmp_path, "--keep", "1", "--incomplete", "--yes")
    assert [key["step"] for key in call_json("ls", tmp_path)["steps"]] == [1]
    (file, _) = sorted(step_dir(tmp_path, 1).glob("node-*"))
    file.unlink()
    (step,) = call_json("ls", tmp_path, code=1)["steps"]
    assert step["reasons"] == ["part 0 is missing", "part 1 is missing"]


def test_the_table_is_found_to_name_another_part(tmp_path: Path) -> None:
    """All else is sound: only what was to be read from the section itself tells."""
    forge(tmp_path, 1, ranks=2)
    (file,) = gather(step_dir(tmp_path, 1), 2)
    place = parse_section_path(file / "part-00000-of-00002.dpp")
    assert place is not None
    with FileSource(file) as source:
        table = read_table(source, place)
    digests = [section.index_digest for section in table.sections]
    wrong = type(table)(
        0,
        2,
        tuple(
            type(section)(section.rank, section.offset, section.nbytes, digest)
            for section, digest in zip(table.sections, reversed(digests), strict=True)
        ),
    )
    data = file.read_bytes()
    file.write_bytes(data[: table.offset] + wrong.encode())
    (subject,) = choose_steps(tmp_path)
    verdict = verify(subject)
    assert verdict.state == "damaged" and "names another part" in verdict.damage[0].message
    assert all(each["repaired"] for each in call_json("verify", tmp_path, "--repair")["repairs"])
    assert file.read_bytes() == data


def test_sections_that_the_table_does_not_lead_to_are_found(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    (file,) = gather(step_dir(tmp_path, 1), 2)
    sound = file.read_bytes()
    file.write_bytes(bytes(MIB) + sound)
    assert call_json("verify", tmp_path, "--repair")["good"]
    assert file.read_bytes() == sound
