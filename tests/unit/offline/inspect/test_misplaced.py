"""Files in each other's places: a repair gives them their own names, and writes over none that is the only one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from deeppart.offline.inspect import misplaced
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.steps import list_steps
from tests.unit.cli_support import call_json, flip, forge, part_path, save, save_incrementally, step_dir
from tests.unit.node_files import gather


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def refused(*_: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.fixture(params=["at once", "in turn"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file system that exchanges names, and one that does not."""
    if request.param == "in turn":
        monkeypatch.setattr(misplaced, "exchange_names", refused)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("files", ["rank", "node"])
def test_two_files_of_a_step_exchanged(tmp_path: Path, files: str) -> None:
    """There is no copy of anything."""
    forge(tmp_path, 1, ranks=4)
    directory = step_dir(tmp_path, 1)
    if files == "node":
        gather(directory, 2)
    sound = files_in(directory)
    one, other, *_ = sorted(directory.glob("*.dp*"))
    exchange(one, other)
    assert not call_json("verify", tmp_path, code=1)["good"]
    document = call_json("verify", tmp_path, "--repair")
    assert files_in(directory) == sound and len(document["repairs"]) == (2 if files == "rank" else 4)
    assert call_json("verify", tmp_path)["good"]


@pytest.mark.usefixtures("way")
def test_three_in_a_circle(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=3)
    directory = step_dir(tmp_path, 1)
    sound = files_in(directory)
    zero, one, two = (part_path(tmp_path, 1, rank, 3) for rank in range(3))
    exchange(zero, one)
    exchange(one, two)
    call_json("verify", tmp_path, "--repair")
    assert files_in(directory) == sound


@pytest.mark.usefixtures("way")
def test_exchanged_between_steps_of_which_one_is_verified(tmp_path: Path) -> None:
    for step in (1, 2):
        forge(tmp_path, step, ranks=2)
    exchange(part_path(tmp_path, 1, 1, 2), part_path(tmp_path, 2, 1, 2))
    document = call_json("verify", tmp_path, "--step", 2, "--repair")
    assert {each["file"] for each in document["repairs"]} == {str(part_path(tmp_path, step, 1, 2)) for step in (1, 2)}
    assert call_json("verify", tmp_path, "--all")["good"]


def test_its_own_place_is_free(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    sound = part_path(tmp_path, 1, 1, 2).read_bytes()
    part_path(tmp_path, 1, 1, 2).rename(part_path(tmp_path, 1, 0, 2))
    repairs = call_json("verify", tmp_path, "--repair", code=1)["repairs"]
    assert {Path(each["file"]).name: each["repaired"] for each in repairs} == {
        "part-00000-of-00002.dpp": False,
        "part-00001-of-00002.dpp": True,
    }
    assert part_path(tmp_path, 1, 1, 2).read_bytes() == sound


def test_a_sound_one_goes_where_its_own_place_is_damaged(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    zero, one = part_path(tmp_path, 1, 0, 2), part_path(tmp_path, 1, 1, 2)
    sound = one.read_bytes()
    shutil.copy(one, zero)
    flip(one, 5000)
    call_json("verify", tmp_path, "--repair", code=1)
    assert one.read_bytes() == sound


@pytest.mark.parametrize("files", ["rank", "node"])
def test_what_cannot_be_renamed_is_kept_and_is_put_in_its_place_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    """Step 1 lies in the place of step 2, of which there is a copy; the other way round there is nothing."""
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, files=files, keep_local=1, incremental=False)
    (one,), (two,) = (list(step_dir(root, step).glob("*.dp*")) for step in (1, 2))
    sound = one.read_bytes()
    os.replace(one, two)
    with monkeypatch.context() as patch:
        patch.setattr(misplaced, "_rename", lambda file, own: False)
        (repair,) = call_json("verify", root, "--local", local, "--repair")["repairs"]
    (kept,) = two.parent.glob(".*.kept-*")
    assert repair["repaired"] and str(kept) in repair["source"] and kept.read_bytes() == sound
    assert call_json("verify", root, "--all", "--repair")["good"]
    assert one.read_bytes() == sound and not kept.exists()


def test_a_copy_of_what_is_sound_in_its_own_place_is_written_over(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local, incremental=False)
    shutil.copy(part_path(root, 1), part_path(root, 2))
    assert call_json("verify", root, "--local", local, "--repair")["good"]
    assert len(files_in(step_dir(root, 2))) == 2


def test_what_no_manifest_names_is_kept_until_the_step_goes(tmp_path: Path) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, local_dir=local)
    forge(tmp_path / "other", 7, ranks=1)
    shutil.copy(part_path(tmp_path / "other", 7), part_path(root, 1))
    for _ in range(2):
        assert call_json("verify", root, "--local", local, "--repair")["good"]
        (kept,) = step_dir(root, 1).glob(".*.kept-*")
        assert kept.read_bytes() == part_path(tmp_path / "other", 7).read_bytes()
        shutil.copy(kept, part_path(root, 1))  # once more: it is kept already
    PersistentLevel(root).remove(set(list_steps(root)))
    assert list_steps(root) == {}


def test_a_base_in_the_place_of_which_there_is_the_only_file_of_another_step(tmp_path: Path) -> None:
    """On a node: what would be written over is the only one of step 2."""
    root, local = tmp_path / "p", tmp_path / "l"
    node = save_incrementally(root, local)
    (base,) = step_dir(node, 3).glob("base-*")
    base.unlink()
    os.replace(part_path(node, 2), base)
    sound = base.read_bytes()
    shutil.rmtree(step_dir(root, 2))
    call_json("verify", root, "--step", 3, "--local", local, "--repair")
    (kept,) = step_dir(node, 3).glob(".*.kept-*")
    assert kept.read_bytes() == sound


def test_what_an_interrupted_repair_has_left_goes_with_the_next(tmp_path: Path) -> None:
    forge(tmp_path, 1, ranks=2)
    left = step_dir(tmp_path, 1) / ".node-00000-of-00002.dpn.tmp-77-0a1b2c3d"
    other = step_dir(tmp_path, 1) / "notes.txt"
    left.write_bytes(b"half of one")
    other.write_text("mine")
    assert call_json("verify", tmp_path)["good"] and left.exists(), "verify only reads"
    assert call_json("verify", tmp_path, "--repair")["good"]
    assert not left.exists() and other.exists()
