"""Finding a committed step: the newest that is sound, or the one asked for; a job may be writing meanwhile."""

from __future__ import annotations

import errno
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import (
    CorruptFileError,
    DeeppartWarning,
    RestoreError,
    SignatureError,
    StorageError,
    SuspectStepWarning,
)
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.offline.find import Chosen, find_step, with_checkpoint
from deeppart.part import FileSource, Signing
from deeppart.storage import MOST_LOOKS, PosixStore, Suspicions
from tests.golden import forge
from tests.unit.cli_support import flip
from tests.unit.commits import FIRST, SECOND, begun, commit, manifest_file, manifest_of, retire

KEY, OTHER_KEY = Signing([b"k" * 64]), Signing([b"o" * 64])


def damage(root: Path, step: int, session: str = FIRST) -> None:
    flip(manifest_file(root, commit(root, step, session)), 60)


def test_the_newest_with_what_is_newer_and_of_no_use(tmp_path: Path) -> None:
    commit(tmp_path, 9)
    key = commit(tmp_path, 10)
    begun(tmp_path, 12)
    found = find_step(tmp_path, None, None)
    assert (found.step.key, found.manifest) == (key, manifest_of(10))
    assert found.passed_over == (), "what was begun is nothing to tell"
    damage(tmp_path, 11)
    damage(tmp_path, 8)
    found = find_step(tmp_path, None, None)
    (line,) = found.passed_over
    assert found.step.key == key and line.startswith("step 11 is newer, and cannot be used: ")


def test_of_several_commits_of_one_step_the_last(tmp_path: Path) -> None:
    late = commit(tmp_path, 5, FIRST, created="2026-11-22T00:00:00+00:00")
    commit(tmp_path, 5, SECOND, created="2026-11-21T00:00:00+00:00")
    damage(tmp_path, 5, "3" * 32)
    begun(tmp_path, 5, "4" * 32)
    commit(tmp_path, 6)
    found = find_step(tmp_path, 5, None)
    assert found.step.key == late and found.passed_over == ()


def test_the_one_asked_for_is_damaged_or_not_signed(tmp_path: Path) -> None:
    """Another one is never read in its place."""
    commit(tmp_path, 1)
    damage(tmp_path, 2)
    with pytest.raises(CorruptFileError):
        find_step(tmp_path, 2, None)
    with pytest.raises(SignatureError):
        find_step(tmp_path, 1, KEY)


def test_the_one_asked_for_is_not_there(tmp_path: Path) -> None:
    for step in range(1, 11):
        commit(tmp_path, step)
    begun(tmp_path, 11)
    for step in (11, 12):
        with pytest.raises(RestoreError, match=f"step {step} is not a committed checkpoint") as caught:
            find_step(tmp_path, step, None)
        assert caught.value.found == "committed steps: [3, 4, 5, 6, 7, 8, 9, 10]"
        assert caught.value.where == str(tmp_path)


def test_nothing_is_committed(tmp_path: Path) -> None:
    begun(tmp_path, 1)
    damage(tmp_path, 2)
    with pytest.raises(RestoreError, match="no committed checkpoint") as caught:
        find_step(tmp_path, None, None)
    found = str(caught.value.found)
    assert found.startswith("step 1: no manifest: the checkpoint was not completed; step 2: ")
    begun(tmp_path / "other", 1)
    with pytest.raises(RestoreError) as caught:
        find_step(tmp_path / "other", 5, None)
    assert caught.value.found == "committed steps: none"


def read_a_part(chosen: Chosen) -> int:
    with FileSource(Path(chosen.step.where) / "part"):
        return chosen.manifest.attempt.step


def test_the_one_asked_for_is_not_exchanged_for_another(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    commit(tmp_path, 2)

    def use(chosen: Chosen) -> int:
        retire(Path(chosen.step.where))
        return read_a_part(chosen)

    with pytest.raises(StorageError):
        with_checkpoint(tmp_path, 2, use, None)
    assert find_step(tmp_path, None, None).step.key.step == 1


def test_other_errors_are_not_retried(tmp_path: Path) -> None:
    for step in (1, 2):
        commit(tmp_path, step)
    asked: list[int] = []

    def use(chosen: Chosen) -> None:
        asked.append(chosen.manifest.attempt.step)
        shutil.rmtree(Path(chosen.step.where))
        raise StorageError("the disk is broken", errno=errno.EIO)

    with pytest.raises(StorageError, match="broken"):
        with_checkpoint(tmp_path, None, use, None)
    assert asked == [2]


def test_looking_again_has_an_end(tmp_path: Path) -> None:
    asked: list[int] = []

    def use(chosen: Chosen) -> int:
        asked.append(chosen.manifest.attempt.step)
        retire(Path(chosen.step.where))
        commit(tmp_path, len(asked) + 1)
        return read_a_part(chosen)

    commit(tmp_path, 1)
    with pytest.raises(StorageError):
        with_checkpoint(tmp_path, None, use, None)
    assert asked == list(range(1, MOST_LOOKS + 1))


def test_whoever_reads_an_older_or_a_suspect_one_is_told(tmp_path: Path) -> None:
    commit(tmp_path, 1, FIRST, 1)
    assert with_checkpoint(tmp_path, None, lambda chosen: chosen.remarks, None) == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_checkpoint(tmp_path, None, Chosen.warn, None)
    damage(tmp_path, 2)
    leaf = SuspectLeaf("model/weight", "rank 1 differs from rank 0", 0, 0)
    Suspicions.write(PosixStore(tmp_path), Suspicion(forge.LINEAGE.hex(), FIRST, 2, 2, (1,), (leaf,)))
    chosen = with_checkpoint(tmp_path, None, lambda chosen: chosen, None)
    assert len(chosen.passed_over) == 1 and chosen.passed_over[0].startswith("step 2 is newer")
    assert len(chosen.suspect) == 1 and chosen.suspect[0].startswith("step 1 is suspect: model/weight")
    assert chosen.remarks == chosen.passed_over + chosen.suspect
    with pytest.warns(DeeppartWarning) as told:
        chosen.warn()
    assert [each.category for each in told] == [DeeppartWarning, SuspectStepWarning]
    assert str(told[0].message).startswith("step 1 is read; step 2 is newer, and cannot be used: ")


@pytest.mark.parametrize(("step", "error"), [(-1, ValueError), (True, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_what_is_no_step_is_refused_before_anything_is_read(tmp_path: Path, step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"load\(path, step\): step must be a whole number"):
        with_checkpoint(tmp_path / "nowhere", step, read_a_part, None)
