"""The suite for levels notices levels that break what they promise (tests/conformance runs it on the real ones)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.errors import StorageError
from deeppart.model import Attempt
from deeppart.part import part_key
from deeppart.storage import DurableFile, PosixStore
from deeppart.storage.files import Over
from deeppart.testing import levels
from deeppart.testing.levels import LEVEL_CHECKS


class Broken:
    """A level with one fault."""

    name = "broken"

    def __init__(self, root: Path, file: type[DurableFile] = DurableFile, over: Over = "nothing") -> None:
        self.store, self._file, self._over = PosixStore(root), file, over

    def open_part(self, attempt: Attempt, rank: int) -> DurableFile:
        return self._file(self.store.path(self.part_key(attempt, rank)), over=self._over)

    def part_key(self, attempt: Attempt, rank: int) -> str:
        return part_key(attempt, rank)


class EarlyName(DurableFile):
    """Has its name from the beginning."""

    def write(self, buffer: memoryview | bytes, /) -> None:
        self.path.touch()
        super().write(buffer)


class LosesBytes(DurableFile):
    """The last byte of long pieces is lost."""

    def write(self, buffer: memoryview | bytes, /) -> None:
        super().write(memoryview(buffer)[: len(buffer) - (len(buffer) > 4096)])


class StaysBehind(DurableFile):
    """Giving up removes nothing."""

    def abort(self) -> None:
        pass


class Remembers(DurableFile):
    """Beginning again forgets nothing."""

    def restart(self) -> None:
        pass


class OnePlace(Broken):
    """All attempts at a step share a place."""

    def part_key(self, attempt: Attempt, rank: int) -> str:
        return f"step-{attempt.step}/part-{rank}"


class NamesHalf(DurableFile):
    """What is given up gets its name."""

    def abort(self) -> None:
        if self.temporary.exists():
            self.temporary.rename(self.path)
        super().abort()


BROKEN: dict[str, tuple[Callable[[Path], Broken], str]] = {
    "name before commit": (lambda root: Broken(root, EarlyName), "a_part_appears_whole_or_not_at_all"),
    "bytes lost": (lambda root: Broken(root, LosesBytes), "any_length_in_any_pieces_comes_back"),
    "files left": (lambda root: Broken(root, StaysBehind), "an_abandoned_part_leaves_no_file"),
    "nothing forgotten": (lambda root: Broken(root, Remembers), "a_part_can_be_begun_again"),
    "parts replaced": (lambda root: Broken(root, over="anything"), "no_part_is_ever_replaced"),
    "one place": (OnePlace, "every_part_has_a_place_of_its_own"),
    "half of a part": (
        lambda root: Broken(root, NamesHalf),
        "a_refusal_is_a_storage_error_and_leaves_no_half_of_a_part",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broken_level_is_noticed(tmp_path: Path, name: str) -> None:
    make, check = BROKEN[name]
    with pytest.raises((AssertionError, StorageError)):
        getattr(levels, check)(make(tmp_path))


def test_every_check_is_tested() -> None:
    assert {check.__name__ for check in LEVEL_CHECKS} == {check for _, check in BROKEN.values()}
