"""Files in each other's places get their own names back, and none is ever lost, whatever the file system can do."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from deeppart.model import Attempt, StepKey
from deeppart.part import part_file_name
from deeppart.plan.restart import StoredPart
from deeppart.storage import straightening
from deeppart.storage.node import NodeContents
from deeppart.storage.steps import step_directory
from deeppart.storage.straightening import straighten

WORLD = 6
ATTEMPT = Attempt("ab" * 16, "cd" * 16, 7, 3, WORLD)


def put(directory: Path, place: int, part: int, copy: str = "") -> None:
    (directory / part_file_name(place, WORLD)).write_text(f"{part}{copy}")


def look(directory: Path) -> NodeContents:
    """What an inventory of the files would find: the number of the part is their contents; "-" is damage."""
    found = NodeContents()
    for path in sorted(directory.iterdir()):
        text = path.read_text()
        if text.startswith("-"):
            continue
        part = int(text[0])
        misplaced = path.name != part_file_name(part, WORLD)
        found.parts.append(StoredPart("local", ATTEMPT, part, str(path), 1, "", misplaced=misplaced))
    return found


def contents(directory: Path) -> list[str]:
    return sorted(path.read_text() for path in directory.iterdir())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = step_directory(tmp_path / "node", StepKey(3, ATTEMPT.session, 7))
    made.mkdir(parents=True)
    assert ATTEMPT.key == StepKey(3, ATTEMPT.session, 7)
    return made


def refuse(*paths: Any) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_and_all_is_put_right(
    directory: Path, seed: int, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    places = list(range(WORLD))
    draw.shuffle(places)
    parts = draw.sample(range(WORLD), draw.randint(1, WORLD))
    for place, part in zip(places, parts, strict=False):
        put(directory, place, part)
    for place in places[len(parts) :]:
        kind = draw.choice(["nothing", "another copy", "damage"])
        if kind == "another copy":
            put(directory, place, draw.choice(parts), f" again {place}")
        elif kind == "damage":
            (directory / part_file_name(place, WORLD)).write_text(f"- {place}")
    before = contents(directory)
    if not exchanges:
        monkeypatch.setattr(straightening, "exchange_names", refuse)
    lines = straighten(look(directory))
    assert contents(directory) == before
    held = {path.name: path.read_text() for path in directory.iterdir()}
    right = {part for part in parts if held.get(part_file_name(part, WORLD), "-")[:1] == str(part)}
    if exchanges:
        assert right == set(parts)
    assert not straighten(look(directory)), "all that can be done has been done"
    assert len(lines) <= WORLD


def test_a_file_of_another_step_stays(directory: Path) -> None:
    put(directory, 1, 1)
    other = directory.parent / directory.name.replace("step-000000000003", "step-000000000004")
    directory.rename(other)
    found = look(other)
    found.parts[0] = StoredPart("local", ATTEMPT, 1, found.parts[0].path, 1, "", misplaced=True)
    assert not straighten(found) and contents(other) == ["1"]
