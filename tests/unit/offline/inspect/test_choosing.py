"""Which steps are verified, and what is known of each before its parts are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, RestoreError, StorageError
from deeppart.offline.inspect.choosing import choose_steps
from tests.unit.cli_support import flip, forge, manifest_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        forge(tmp_path, step)
    return tmp_path


def chosen(root: Path, step: int | None = None, *, every: bool = False) -> list[tuple[int, bool]]:
    return [(each.key.step, each.manifest is not None) for each in choose_steps(root, step, every=every)]


def test_the_newest_one_step_or_all(root: Path) -> None:
    assert chosen(root) == [(3, True)] and chosen(root, 2) == [(2, True)]
    assert chosen(root, every=True) == [(1, True), (2, True), (3, True)]


def test_the_newest_commit_is_chosen_sound_or_not(root: Path) -> None:
    flip(manifest_path(root, 3), 40)
    (found,) = choose_steps(root)
    assert found.key.step == 3 and found.manifest is None and isinstance(found.error, CorruptFileError)
    assert found.nbytes == 0


def test_what_was_never_committed_is_chosen_only_by_name(root: Path) -> None:
    manifest_path(root, 3).unlink()
    assert chosen(root) == [(2, True)]
    (found,) = choose_steps(root, 3)
    assert found.manifest is None and found.error is None


def test_all_bytes_of_a_step_count(root: Path) -> None:
    (found,) = choose_steps(root)
    assert found.nbytes == sum(path.stat().st_size for path in found.directory.glob("*.dpp"))


def test_what_is_not_there_is_told_with_what_is(root: Path) -> None:
    with pytest.raises(RestoreError, match=r"there is no step 7\n  found: steps 1, 2, 3"):
        choose_steps(root, 7)
    (root / "empty").mkdir()
    with pytest.raises(RestoreError, match="no step directory"):
        choose_steps(root / "empty")
    with pytest.raises(RestoreError, match="no such checkpoint directory"):
        choose_steps(root / "nowhere")
    with pytest.raises(StorageError, match="a file"):
        choose_steps(manifest_path(root, 1))
