"""The suite that every level passes: what the pipeline and the restart rely on.

``for check in LEVEL_CHECKS: check(level)``, each with a fresh level on an empty directory. A check raises
AssertionError.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from typing import Protocol

from deeppart.errors import MissingError, StorageError
from deeppart.model import Attempt
from deeppart.part import part_key, step_name
from deeppart.storage import BLOCK_BYTES, PosixStore, Store, Writer, list_steps
from tests.storage_faults import TYPICAL_ERRORS, StorageFaults

#: Of direct writes.
ALIGNMENT = 4096
_SIZES = (0, 1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + ALIGNMENT + 1)


class Level(Protocol):
    """A place where the parts of a step are stored.

    Attributes:
        name: one of ``model.LEVELS``.
        store: where its steps are.
    """

    name: str

    @property
    def store(self) -> Store:
        """See above."""

    def open_part(self, attempt: Attempt, rank: int) -> Writer:
        """Begin the part of a rank, which has the key ``deeppart.storage.part_key(attempt, rank)`` in the store.

        Raises:
            StorageError: it cannot be created.
        """


def attempt(step: int, ranks: int = 2, sequence: int = 0) -> Attempt:
    """An attempt to write parts of."""
    return Attempt("a" * 32, "b" * 32, sequence, step, ranks)


def _read(level: Level, attempt: Attempt, rank: int) -> bytes | None:
    """A part; None if there is none."""
    key = part_key(attempt, rank)
    found = level.store.stat(key)
    if found is None:
        return None
    with level.store.open(key) as source:
        assert source.size == found.nbytes
        return bytes(source.read_at(0, source.size))


def _names(level: Level, attempt: Attempt) -> list[str]:
    """All that lies at a step."""
    try:
        return sorted(level.store.list(step_name(attempt.key)))
    except MissingError:
        return []


def _name(attempt: Attempt, rank: int) -> str:
    return part_key(attempt, rank).partition("/")[2]


def a_part_appears_whole_or_not_at_all(level: Level) -> None:
    """Nothing is under the part's name before ``commit``, everything after it; nothing else is left behind."""
    file = level.open_part(attempt(1), 0)
    assert _read(level, attempt(1), 0) is None
    file.write(b"first, ")
    file.write(memoryview(b"second"))
    assert _read(level, attempt(1), 0) is None
    file.commit()
    assert _read(level, attempt(1), 0) == b"first, second"
    assert _names(level, attempt(1)) == [_name(attempt(1), 0)]


def any_length_in_any_pieces_comes_back(level: Level) -> None:
    """Around the sizes of blocks and alignment, whatever pieces it is written in, from wherever they lie."""
    for step, size in enumerate(_SIZES):
        data = memoryview(mmap.mmap(-1, size + ALIGNMENT))[:size]  # on a page, as direct writes want it
        data[:] = (os.urandom(min(size, 1 << 16)) * (size // min(size, 1 << 16) + 1 if size else 1))[:size]
        for rank, piece in enumerate((size or 1, 1_000_003)):
            file = level.open_part(attempt(step), rank)
            for at in range(0, size, piece):
                file.write(data[at : min(size, at + piece)])
            file.commit()
            assert _read(level, attempt(step), rank) == bytes(data[:size]), (size, piece)


def an_abandoned_part_leaves_no_file(level: Level) -> None:
    """``abort`` removes what was written, at any point; a second one does nothing."""
    for pieces in range(3):
        file = level.open_part(attempt(1), 0)
        for _ in range(pieces):
            file.write(bytes(BLOCK_BYTES))
        file.abort()
        file.abort()
        assert _names(level, attempt(1)) == []


def a_part_can_be_begun_again(level: Level) -> None:
    """``restart`` forgets what was written; only what follows is in the part."""
    for size in (10, BLOCK_BYTES + 5000):
        file = level.open_part(attempt(size), 0)
        file.write(b"x" * size)
        file.restart()
        file.write(b"y" * 100)
        file.commit()
        assert _read(level, attempt(size), 0) == b"y" * 100


def no_part_is_ever_replaced(level: Level) -> None:
    """Check that a part keeps its name and a second one for it is removed; another attempt at the step has another
    place.
    """
    for content in (b"first", b"second"):
        file = level.open_part(attempt(1), 1)
        file.write(content)
        try:
            file.commit()
            assert content == b"first"
        except StorageError as error:
            assert content == b"second" and error.errno == errno.EEXIST
        assert _read(level, attempt(1), 1) == b"first" and _names(level, attempt(1)) == [_name(attempt(1), 1)]
    assert _read(level, attempt(1, sequence=1), 1) is None


def every_part_has_a_place_of_its_own(level: Level) -> None:
    """By step, rank and world size, at places that are recognized as steps."""
    steps = (0, 1, 10**11, 10**18 - 1)
    for step in steps:
        for rank, ranks in ((0, 1), (0, 2), (1, 2), (99_999, 100_000), (100_000, 100_001)):
            file = level.open_part(attempt(step, ranks), rank)
            file.commit()
    assert [key.step for key in list_steps(level.store)] == sorted(steps)
    assert all(len(_names(level, attempt(step))) == 5 for step in steps)


def a_refusal_is_a_storage_error_and_leaves_no_half_of_a_part(level: Level) -> None:
    """Whatever the operating system refuses while a part is written, where it does so."""
    if not isinstance(level.store, PosixStore):
        return
    sequence = 0
    with StorageFaults(level.store.root) as faults:
        for code in TYPICAL_ERRORS:
            for number in range(100):
                sequence += 1
                path = level.store.path(part_key(attempt(1, sequence=sequence), 0))
                faults.refuse(number, code)
                error = _write(level, sequence)
                if not faults.refused:
                    assert error is None and number >= 4
                    break
                assert error is None or (error.errno == code and errno.errorcode[code]), (number, error)
                assert error is None or not path.exists() or path.read_bytes() == b"new" * 9999
    assert path.read_bytes() == b"new" * 9999 and os.listdir(path.parent) == [path.name]


def _write(level: Level, sequence: int) -> StorageError | None:
    file = None
    try:
        file = level.open_part(attempt(1, sequence=sequence), 0)
        file.write(b"new" * 9999)
        file.commit()
    except StorageError as error:
        if file is not None:
            file.abort()
        return error
    return None


LEVEL_CHECKS: tuple[Callable[[Level], None], ...] = (
    a_part_appears_whole_or_not_at_all,
    any_length_in_any_pieces_comes_back,
    an_abandoned_part_leaves_no_file,
    a_part_can_be_begun_again,
    no_part_is_ever_replaced,
    every_part_has_a_place_of_its_own,
    a_refusal_is_a_storage_error_and_leaves_no_half_of_a_part,
)
