"""Whether the parts that a manifest names are there: every way in which one is not, and no chunk is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.model import Manifest
from deeppart.storage.manifests import file_length, first_problem, part_problem, read_manifest
from deeppart.storage.steps import parse_step_directory_name
from tests.unit.cli_support import flip, forge, part_path, step_dir


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    forge(tmp_path, 1)
    forge(tmp_path, 2)
    return step_dir(tmp_path, 1)


def manifest_of(directory: Path) -> Manifest:
    key = parse_step_directory_name(directory.name)
    assert key is not None
    return read_manifest(directory.parent, key, None)


def problem(directory: Path) -> str | None:
    return first_problem(directory, manifest_of(directory), None)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_the_other_step(path: Path) -> None:
    path.write_bytes(part_path(path.parents[1], 2, 1, 3).read_bytes())


def test_a_whole_step_has_no_problem(directory: Path) -> None:
    assert problem(directory) is None


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
    manifest = manifest_of(directory)
    path = part_path(directory.parent, 1, 0, 3)
    assert part_problem(directory, manifest, manifest.parts[0], None) == (None, path.stat().st_size)
    cut(path)
    assert part_problem(directory, manifest, manifest.parts[0], None)[1] == path.stat().st_size
    assert file_length(path.with_name("none")) == ("is missing", 0)
    assert file_length(path / "below a file") == ("cannot be looked at: Not a directory", 0)
