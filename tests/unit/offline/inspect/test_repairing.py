"""Repairs: what is called repaired is sound afterwards, as what its place requires; nothing else is written over."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.offline.inspect import repairing
from deeppart.offline.inspect.node_files import lineage_on_nodes, verify_nodes
from deeppart.offline.inspect.reach import Reach
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.part import FileSource, parse_section_path, part_file_name, read_table
from tests.unit.cli_support import (
    call,
    call_json,
    flip,
    forge,
    manifest_path,
    part_path,
    save,
    save_incrementally,
    step_dir,
)
from tests.unit.node_files import gather

MIB = 1 << 20
PART = "part-00000-of-00001.dpp"
LINEAGE = "ab" * 16


def base_of(directory: Path) -> Path:
    (base,) = directory.glob("base-*")
    return base


def repairs(*arguments: object, code: int = 0) -> dict[str, Any]:
    """By name of the file: where it was repaired from, or why it was not."""
    found = call_json("verify", *arguments, "--repair", code=code)["repairs"]
    return {each["path"].rpartition("/")[2]: each["source"] or each["problem"] for each in found}


def test_the_part_of_another_step_in_the_place_of_one_that_lacks_its_base(tmp_path: Path) -> None:
    """With its base beside it, it would be sound; and still not what the place requires."""
    root, local = tmp_path / "p", tmp_path / "l"
    save_incrementally(root, local)
    two, three = step_dir(root, 2), step_dir(root, 3)
    sound = (three / PART).read_bytes()
    shutil.copy(two / PART, three / PART)
    base_of(three).unlink()
    assert "no sound copy of part 0" in repairs(root, code=1)[PART]
    assert "persistent" not in repairs(root, "--local", local)[PART]
    assert (three / PART).read_bytes() == sound and base_of(three).is_file()
    assert call_json("verify", root, "--all", "--local", local)["good"]


@pytest.mark.parametrize("files", ["rank", "node"])
def test_a_base_on_a_node_that_is_another_sound_file(tmp_path: Path, files: str) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local, files=files)
    base = base_of(step_dir(node, 3))
    sound = base.read_bytes()
    base.unlink()
    shutil.copy(step_dir(node, 2) / PART, base)
    repairs(root, "--local", local)
    assert base.read_bytes() == sound and call_json("verify", root, "--local", local)["good"]


@pytest.mark.parametrize(
    ("level", "damage"),
    [
        *itertools.product(["persistent", "node"], ["chunk of the part", "chunk of the base", "no base", "other base"]),
        ("persistent", "other part"),
    ],
)
def test_what_is_still_wrong_afterwards_is_not_called_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, damage: str
) -> None:
    """A repair that writes nothing at all."""
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local)
    steps = root if level == "persistent" else node
    path, base = part_path(steps, 3), base_of(step_dir(steps, 3))
    if "base" in damage:
        data = base.read_bytes()
        base.unlink()
        base.write_bytes(path.read_bytes() if damage == "other base" else data)
    if damage == "no base":
        base.unlink()
    elif damage == "other part":
        shutil.copy(part_path(steps, 2), path)
    elif damage != "other base":
        flip(base if "base" in damage else path, 4_000_000 if "base" in damage else 5000)
    monkeypatch.setattr(repairing.Repairer, "_put", lambda *_: None)
    found = call_json("verify", root, "--local", local, "--repair", code=1)["repairs"]
    assert found and all(each["problem"] for each in found)


def test_a_place_tells_the_checkpoint_and_not_what_lies_there(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local)
    (node,) = local.iterdir()
    for level in (root, node):
        shutil.copy(part_path(level, 1), part_path(level, 2))
    reach = Reach(root, verify_nodes([local], lineage_on_nodes(root), None), [part_path(root, 2)], None)
    for level in (root, node):
        assert reach.attempt_of(part_path(level, 2), 1).step == 2
    with pytest.raises(CorruptFileError, match="nothing tells"):
        reach.attempt_of(tmp_path / "x" / PART, 1)


def test_a_part_on_a_node_without_its_base_and_without_a_manifest(tmp_path: Path) -> None:
    """Nothing but its own header tells what it is."""
    root, local = tmp_path / "p", tmp_path / "l"
    three = step_dir(save_incrementally(root, local), 3)
    shutil.rmtree(step_dir(root, 3))
    base = base_of(three)
    base.unlink()
    repairs(root, "--all", "--local", local)
    assert base.is_file()


def test_what_an_interrupted_repair_has_left_goes_with_the_next(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    left = step_dir(tmp_path, 1) / ".node-00000-of-00002.dpn.tmp-77-0a1b2c3d"
    other = step_dir(tmp_path, 1) / "notes.txt"
    left.write_bytes(b"half of one")
    other.write_text("mine")
    assert call_json("verify", tmp_path)["good"] and left.exists(), "verify only reads"
    assert call_json("verify", tmp_path, "--repair")["good"]
    assert not left.exists() and other.exists()


# --- files that are not what their names say --------------------------------------------------------------------------


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("files", ["rank", "node"])
def test_two_files_of_a_step_exchanged_are_named_and_left(tmp_path: Path, files: str) -> None:
    """There is no copy of anything."""
    forge(tmp_path, 1, ranks=4)
    directory = step_dir(tmp_path, 1)
    if files == "node":
        gather(directory, 2)
    one, other, *_ = sorted(directory.glob("*.dp*"))
    exchange(one, other)
    before = one.read_bytes(), other.read_bytes()
    (step,) = call_json("verify", tmp_path, code=1)["steps"]
    messages = [each["message"] for each in step["damage"] if each["kind"] == "part"]
    second = 1 if files == "rank" else 2
    assert f"by its contents it is part {second} of step 1: `mv {one} {other}`, after moving" in messages[0]
    found = repairs(tmp_path, code=1)
    assert all("is not written over" in each and "by its contents it is part" in each for each in found.values())
    assert (one.read_bytes(), other.read_bytes()) == before
    exchange(one, other)
    assert call_json("verify", tmp_path)["good"]


def test_one_whose_own_place_is_free(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    zero, one = part_path(tmp_path, 1, 0, 2), part_path(tmp_path, 1, 1, 2)
    one.rename(zero)
    assert f"by its contents it is part 1 of step 1: `mv {zero} {one}`" in repairs(tmp_path, code=1)[zero.name]
    zero.rename(one)
    assert list(repairs(tmp_path, code=1)) == [zero.name]


def test_a_copy_of_what_is_sound_in_its_own_place_is_written_over(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, incremental=False)
    shutil.copy(part_path(root, 1), part_path(root, 2))
    (step,) = call_json("verify", root, code=1)["steps"]
    assert "if that is sound, --repair writes the right one here" in step["damage"][0]["message"]
    assert call_json("verify", root, "--local", local, "--repair")["good"]
    flip(part_path(root, 1), 5000)
    shutil.copy(part_path(root, 1), part_path(root, 2))
    found = repairs(root, "--local", local)[PART]
    assert "local" in found, "the other copy is on the node"


def test_a_sound_one_stays_where_its_own_place_is_damaged(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    zero, one = part_path(tmp_path, 1, 0, 2), part_path(tmp_path, 1, 1, 2)
    sound = one.read_bytes()
    shutil.copy(one, zero)
    flip(one, 5000)
    assert f"`mv {zero} {one}`, after moving away what lies there" in repairs(tmp_path, code=1)[zero.name]
    assert zero.read_bytes() == sound


def test_the_only_file_of_another_step_stays_though_there_is_a_copy_of_what_belongs_there(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, keep_local=1, incremental=False)
    one, two = part_path(root, 1), part_path(root, 2)
    sound = one.read_bytes()
    os.replace(one, two)
    assert f"`mv {two} {one}`" in repairs(root, "--local", local, code=1)[PART]
    assert two.read_bytes() == sound
    os.replace(two, one)
    assert call_json("verify", root, "--local", local, "--repair")["good"]
    assert call_json("verify", root, "--all")["good"]


def test_what_no_manifest_names_stays(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, local_dir=local)
    forge(tmp_path / "other", 7, ranks=1)
    shutil.copy(part_path(tmp_path / "other", 7), part_path(root, 1))
    found = repairs(root, "--local", local, code=1)[PART]
    assert "part 0 of step 7, whose place is not here: move it out of this directory" in found
    part_path(root, 1).unlink()
    assert call_json("verify", root, "--local", local, "--repair")["good"]


def test_a_base_in_the_place_of_which_there_is_the_only_file_of_another_step(tmp_path: Path) -> None:
    """On a node: what would be written over is the only one of step 2."""
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local)
    base = base_of(step_dir(node, 3))
    base.unlink()
    os.replace(part_path(node, 2), base)
    sound = base.read_bytes()
    shutil.rmtree(step_dir(root, 2))
    repairs(root, "--step", 3, "--local", local, code=1)
    assert base.read_bytes() == sound


# --- node files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path, Path, bytes]:
    """Directory, node-local directory, the node file of step 2, and its bytes."""
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, files="node")
    (path,) = step_dir(root, 2).glob("node-*")
    return root, local, path, path.read_bytes()


@pytest.mark.parametrize("damage", [100, 5000, -1, "gone", "cut", "moved"])
def test_a_node_file_is_written_anew_from_the_node(saved: tuple[Path, Path, Path, bytes], damage: int | str) -> None:
    root, local, path, sound = saved
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(sound[:9000])
    elif damage == "moved":  # the table does not lead to it
        path.write_bytes(bytes(MIB) + sound)
    else:
        assert isinstance(damage, int)
        flip(path, damage % len(sound))
    (step,) = call_json("verify", root, code=1)["steps"]
    assert step["damage"][0]["file"] == "node-00000-of-00001.dpn/part-00000-of-00001.dpp"
    assert "there is no sound copy of part 0" in repairs(root, code=1)[PART]
    assert not path.exists() or path.read_bytes() != sound
    assert repairs(root, "--local", local)[PART].startswith("local ")
    assert path.read_bytes() == sound and call_json("verify", root, "--all")["good"]


def test_a_restore_passes_over_a_damaged_section(saved: tuple[Path, Path, Path, bytes]) -> None:
    root, _, path, _ = saved
    plan = call_json("explain", root)
    assert plan["step"] == 2 and "persistent" in json.dumps(plan)
    flip(path, 5000)
    assert call_json("explain", root)["step"] == 2, "it looks at indexes, not at all bytes"
    flip(path, 100)
    assert call_json("explain", root)["step"] == 1


def test_a_part_on_a_node_is_repaired_from_a_section(saved: tuple[Path, Path, Path, bytes]) -> None:
    root, local, _, _ = saved
    (path,) = local.glob("*/step-000000000002-*/part-*")
    sound = path.read_bytes()
    flip(path, 5000)
    assert "node-00000-of-00001.dpn" in repairs(root, "--local", local)[PART]
    assert path.read_bytes() == sound


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    """The node file of two ranks, whose parts lie nowhere else."""
    forge(tmp_path / "p", 1, ranks=2)
    (file,) = gather(step_dir(tmp_path / "p", 1), 2)
    return file


def copy_to_a_node(file: Path, rank: int) -> Path:
    """A sound copy of a section as a file on a node; the node-local directory."""
    root, name = file.parent.parent, part_file_name(rank, 2)
    (root / "deeppart.json").write_text(json.dumps({"lineage": LINEAGE}))
    place = root.parent / "node" / LINEAGE / file.parent.name
    place.mkdir(parents=True, exist_ok=True)
    with FileSource(file / name) as source:
        (place / name).write_bytes(source.read_at(0, source.size))
    return root.parent / "node"


def test_a_node_file_is_written_anew_as_a_whole_or_not_at_all(forged: Path) -> None:
    """From its sound sections and from copies of the others."""
    sound, root = forged.read_bytes(), forged.parent.parent
    local = copy_to_a_node(forged, 0)
    flip(forged, 4100)
    assert repairs(root, "--local", local)["part-00000-of-00002.dpp"].startswith("local ")
    assert forged.read_bytes() == sound
    flip(forged, 4100)
    flip(forged, MIB + 4100)
    damaged = forged.read_bytes()
    found = repairs(root, "--local", local, code=1)
    assert len(found) == 2 and all("there is no sound copy of part 1" in each for each in found.values())
    assert forged.read_bytes() == damaged and len(os.listdir(forged.parent)) == 2


def refuse_reads(monkeypatch: pytest.MonkeyPatch, file: Path, where: Callable[[int, int], bool]) -> None:
    """Reads of this file, now, whose range is one of those fail with EIO."""
    real, inode = os.preadv, file.stat().st_ino

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if os.fstat(fd).st_ino == inode and where(offset, offset + sum(map(len, buffers))):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


def test_a_section_that_cannot_be_read_now_and_has_no_copy_stays(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = forged.parent.parent
    flip(forged, 4100)
    damaged = forged.read_bytes()
    with monkeypatch.context() as patch:
        refuse_reads(patch, forged, lambda start, stop: MIB <= start < MIB + 8000)
        found = repairs(root, code=1)
    assert not any(each.startswith("persistent") for each in found.values())
    assert forged.read_bytes() == damaged and len(os.listdir(forged.parent)) == 2


def test_the_table_is_found_to_name_another_part(forged: Path) -> None:
    """All else is sound: only what was to be read from the section itself tells."""
    place = parse_section_path(forged / "part-00000-of-00002.dpp")
    assert place is not None
    with FileSource(forged) as source:
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
    forged.write_bytes(forged.read_bytes()[: table.offset] + wrong.encode())
    (subject,) = choose_steps(forged.parent.parent)
    verdict = verify(subject)
    assert verdict.state == "damaged" and "names another part" in verdict.damage[0].message


def test_every_command_on_node_files(tmp_path: Path) -> None:
    for step in (1, 2):
        forge(tmp_path, step, ranks=4)
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
