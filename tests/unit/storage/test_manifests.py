"""Manifests in a directory: which steps are committed, in which order, and whether their parts are there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, SignatureError, StorageError
from deeppart.model import Manifest
from deeppart.part import Signing, encode_manifest
from deeppart.storage.manifests import (
    UNFINISHED,
    committed_among,
    committed_steps,
    file_length,
    first_problem,
    part_problem,
    read_manifest,
    read_manifests,
)
from deeppart.storage.steps import list_steps, parse_step_directory_name, step_directory
from deeppart.testing.faults import StorageFaults
from tests.unit.cli_support import flip, forge, part_path, step_dir
from tests.unit.commits import FIRST, SECOND, begun, commit, manifest_file, manifest_of

KEY, OTHER_KEY = Signing([b"k" * 64]), Signing([b"o" * 64])


# --- one of them ------------------------------------------------------------------------------------------------------


def test_damage_is_told_with_the_file(tmp_path: Path) -> None:
    key = commit(tmp_path, 1)
    flip(manifest_file(tmp_path, key), 60)
    with pytest.raises(CorruptFileError) as caught:
        read_manifest(tmp_path, key, None)
    assert caught.value.where == str(manifest_file(tmp_path, key))


def test_what_is_no_file_is_damage_and_is_not_followed(tmp_path: Path) -> None:
    key, other = begun(tmp_path, 1), commit(tmp_path, 1, SECOND)
    manifest_file(tmp_path, key).symlink_to(manifest_file(tmp_path, other))
    with pytest.raises(CorruptFileError, match="not a regular file"):
        read_manifest(tmp_path, key, None)


def test_storage_that_fails_is_no_damage(tmp_path: Path) -> None:
    key = commit(tmp_path, 1)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=("open",), count=None)
        with pytest.raises(StorageError) as caught:
            read_manifest(tmp_path, key, None)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("step", "session", "sequence"), [(2, FIRST, 0), (1, SECOND, 0), (1, FIRST, 1)], ids=["step", "session", "sequence"]
)
def test_a_manifest_of_another_step_is_none(tmp_path: Path, step: int, session: str, sequence: int) -> None:
    """A directory that somebody has renamed, or a file that was copied."""
    key = begun(tmp_path, step, session, sequence)
    manifest_file(tmp_path, key).write_bytes(encode_manifest(manifest_of(1)))
    with pytest.raises(CorruptFileError, match="of another step") as caught:
        read_manifest(tmp_path, key, None)
    assert caught.value.expected == f"step {step} of session {session}, sequence {sequence}"
    assert caught.value.found == f"step 1 of session {FIRST}, sequence 0"


def test_with_keys_it_must_be_signed_with_one_of_them(tmp_path: Path) -> None:
    signed, plain = commit(tmp_path, 1, signing=KEY), commit(tmp_path, 2)
    assert read_manifest(tmp_path, signed, KEY).signed and read_manifest(tmp_path, signed, None).signed
    assert not read_manifest(tmp_path, plain, None).signed
    for key, signing in ((plain, KEY), (signed, OTHER_KEY)):
        with pytest.raises(SignatureError):
            read_manifest(tmp_path, key, signing)


# --- all of them ------------------------------------------------------------------------------------------------------


def test_each_step_is_a_checkpoint_or_says_why_not(tmp_path: Path) -> None:
    good, without, damaged, foreign = (
        commit(tmp_path, 1),
        begun(tmp_path, 2),
        commit(tmp_path, 3),
        commit(tmp_path, 4, signing=OTHER_KEY),
    )
    flip(manifest_file(tmp_path, damaged), 60)
    (tmp_path / "notes").mkdir()
    found, problems = read_manifests(tmp_path, None)
    assert [(each.key, each.directory, each.manifest) for each in found] == [
        (good, step_directory(tmp_path, good), manifest_of(1)),
        (foreign, step_directory(tmp_path, foreign), manifest_of(4)),
    ]
    assert list(problems) == [without, damaged] and problems[without] == UNFINISHED
    found, problems = read_manifests(tmp_path, KEY)
    assert found == [] and list(problems) == [good, without, damaged, foreign]


def test_the_newest_is_the_last(tmp_path: Path) -> None:
    """By step, by time, by sequence: sessions are random, and a step may be saved anew in another one."""
    early, late = "2026-11-21T04:05:06+00:00", "2026-11-21T04:05:07+00:00"
    keys = {
        "step": commit(tmp_path, 3, FIRST, created=early),
        "later session": commit(tmp_path, 2, FIRST, created=late),
        "earlier session": commit(tmp_path, 2, SECOND, created=early),
        "later sequence": commit(tmp_path, 2, FIRST, 9, created=early),
        "oldest": commit(tmp_path, 1, SECOND, created=late),
    }
    found, _ = read_manifests(tmp_path, None)
    assert [each.key for each in found] == [
        keys[name] for name in ("oldest", "earlier session", "later sequence", "later session", "step")
    ]


def test_a_root_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for ask in (lambda root: read_manifests(root, None), committed_steps):
        with pytest.raises(StorageError, match="cannot list"):
            ask(tmp_path / "file")


# --- without reading them ---------------------------------------------------------------------------------------------


def test_committed_steps_are_those_with_a_manifest_whatever_is_in_it(tmp_path: Path) -> None:
    third, first, damaged = commit(tmp_path, 3), commit(tmp_path, 1), begun(tmp_path, 4)
    begun(tmp_path, 2)
    manifest_file(tmp_path, damaged).write_bytes(b"")
    assert committed_steps(tmp_path) == [first, third, damaged]
    listed = list_steps(tmp_path)
    assert committed_among({key: listed[key] for key in (damaged, first)}, tmp_path) == [damaged, first]
    assert committed_among({}, tmp_path) == []


def test_a_manifest_that_cannot_be_looked_for_is_an_error(tmp_path: Path) -> None:
    """It must not pass for a step that was never committed: that one may be removed."""
    commit(tmp_path, 1)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=("stat",), count=None)
        with pytest.raises(StorageError, match="cannot look for manifests") as caught:
            committed_steps(tmp_path)
    assert caught.value.errno == errno.EIO and caught.value.where == str(tmp_path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    forge(tmp_path, 1)
    forge(tmp_path, 2)
    return step_dir(tmp_path, 1)


def manifest_in(directory: Path) -> Manifest:
    key = parse_step_directory_name(directory.name)
    assert key is not None
    return read_manifest(directory.parent, key, None)


def problem(directory: Path) -> str | None:
    return first_problem(directory, manifest_in(directory), None)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_the_other_step(path: Path) -> None:
    path.write_bytes(part_path(path.parents[1], 2, 1, 3).read_bytes())


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (Path.unlink, "is missing"),
        (cut, "bytes instead of"),
        (pipe, "is not a regular file"),
        (lambda path: flip(path, 0), "is not as it was written"),
        (lambda path: flip(path, path.stat().st_size - 1), "is not as it was written"),
        (of_the_other_step, "is not as it was written"),
    ],
    ids=["gone", "cut", "pipe", "header", "footer", "other step"],
)
def test_a_part_that_is_not_there_is_named_with_the_reason(
    directory: Path, damage: Callable[[Path], None], text: str
) -> None:
    damage(part_path(directory.parent, 1, 1, 3))
    found = problem(directory)
    assert found is not None and found.startswith("part 1 ") and text in found, found


def test_the_length_is_told_with_the_problem(directory: Path) -> None:
    manifest = manifest_in(directory)
    path = part_path(directory.parent, 1, 0, 3)
    assert part_problem(directory, manifest, manifest.parts[0], None) == (None, path.stat().st_size)
    cut(path)
    assert part_problem(directory, manifest, manifest.parts[0], None)[1] == path.stat().st_size
    assert file_length(path.with_name("none")) == ("is missing", 0)
    assert file_length(path / "below a file") == ("cannot be looked at: Not a directory", 0)
