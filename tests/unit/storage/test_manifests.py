"""Manifests in a directory: which steps are committed, in which order, and whether their parts are there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.part import Signing, encode_manifest, parse_step_name
from deeppart.storage import NeededParts, PosixStore, committed_steps, list_steps, read_step, read_steps
from deeppart.storage.manifests import read_manifest
from tests.storage_faults import StorageFaults
from tests.unit.cli_support import flip, forge, manifest_path, part_path, save, step_dir
from tests.unit.commits import FIRST, SECOND, begun, commit, manifest_file, manifest_of

KEY, OTHER_KEY = Signing([b"k" * 64]), Signing([b"o" * 64])


@pytest.mark.parametrize(
    ("step", "session", "sequence"), [(2, FIRST, 0), (1, SECOND, 0), (1, FIRST, 1)], ids=["step", "session", "sequence"]
)
def test_a_manifest_of_another_step_is_none(tmp_path: Path, step: int, session: str, sequence: int) -> None:
    """A directory that somebody has renamed, or a file that was copied."""
    key = begun(tmp_path, step, session, sequence)
    manifest_file(tmp_path, key).write_bytes(encode_manifest(manifest_of(1)))
    with pytest.raises(CorruptFileError, match="of another step") as caught:
        read_manifest(PosixStore(tmp_path), key, None)
    assert caught.value.expected == f"step {step} of session {session}, sequence {sequence}"
    assert caught.value.found == f"step 1 of session {FIRST}, sequence 0"


def test_each_step_is_a_checkpoint_or_says_why_not(tmp_path: Path) -> None:
    good, without, damaged, foreign = (
        commit(tmp_path, 1),
        begun(tmp_path, 2),
        commit(tmp_path, 3),
        commit(tmp_path, 4, signing=OTHER_KEY),
    )
    flip(manifest_file(tmp_path, damaged), 60)
    (tmp_path / "notes").mkdir()
    found = read_steps(PosixStore(tmp_path), None)
    whole = [(each.key, each.manifest) for each in found.committed]
    assert whole == [(good, manifest_of(1)), (foreign, manifest_of(4))]
    assert [each.key for each in found.unfinished] == [without] and [each.key for each in found.unusable] == [damaged]
    assert [each.key for each in found.others] == [without, damaged] and "not completed" in found.others[0].reason
    with pytest.raises(CorruptFileError, match="the manifest"):
        _ = found.unusable[0].manifest
    found = read_steps(PosixStore(tmp_path), KEY)
    assert found.committed == () and [each.key for each in found.others] == [good, without, damaged, foreign]


def test_steps_are_read_down_to_the_newest_one_with_a_sound_manifest(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    assert read_steps(PosixStore(tmp_path / "none"), None, newest=True).since is None
    newest = [commit(tmp_path, 3, SECOND), commit(tmp_path, 3)]
    damaged, without = commit(tmp_path, 4), begun(tmp_path, 5)
    flip(manifest_file(tmp_path, damaged), 60)
    found = read_steps(PosixStore(tmp_path), None, newest=True)
    assert {each.key for each in found.committed} == set(newest) and found.since == 3
    assert [each.key for each in found.unusable] == [damaged] and [each.key for each in found.unfinished] == [without]
    assert read_steps(PosixStore(tmp_path), None).since is None


def test_a_manifest_that_cannot_be_looked_for_is_an_error(tmp_path: Path) -> None:
    """It must not pass for a step that was never committed: that one may be removed."""
    commit(tmp_path, 1)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=("stat",), count=None)
        with pytest.raises(StorageError, match="cannot look for manifests") as caught:
            committed_steps(PosixStore(tmp_path))
    assert caught.value.errno == errno.EIO and caught.value.where == str(tmp_path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    forge(tmp_path, 1)
    forge(tmp_path, 2)
    return step_dir(tmp_path, 1)


def problem(directory: Path) -> str | None:
    key = parse_step_name(directory.name)
    assert key is not None
    return read_step(PosixStore(directory.parent), key, None).first_problem()


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
        (pipe, "not a regular file"),
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


def test_a_damaged_manifest_counts_as_referring_to_every_earlier_part_of_its_session(tmp_path: Path) -> None:
    """And to none of another session, or of a later step."""
    save(tmp_path, 1, 2, 3)  # of one session
    save(tmp_path, 4)
    keys = {key.step: key for key in list_steps(PosixStore(tmp_path))}
    flip(manifest_path(tmp_path, 2), 40)
    needed = NeededParts(PosixStore(tmp_path))
    needed.look()
    assert "whatever" in needed.names(keys[1])
    assert not any("whatever" in needed.names(keys[step]) for step in (2, 3, 4))
    assert needed.committed == set(keys.values())
