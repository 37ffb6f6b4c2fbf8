"""The suite for stores notices stores that break what they promise (tests/conformance runs it on the real ones)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deeppart.errors import StorageError
from deeppart.testing import STORE_CHECKS, stores
from tests.memory_store import MemoryObject, MemoryStore, MemoryWriter


class EarlyWriter(MemoryWriter):
    def write(self, buffer: memoryview | bytes, /) -> None:
        super().write(buffer)
        self._store.replace(self._key, bytes(self._data))

    def commit(self) -> None:
        pass


class Early(MemoryStore):
    """Half of an object has its key."""

    def writer(self, key: str) -> MemoryWriter:
        return EarlyWriter(self, key)


class Replacing(MemoryStore):
    """The last one counts."""

    def put_new(self, key: str, data: bytes) -> None:
        self.replace(key, data)


class ShiftedObject(MemoryObject):
    def read_at(self, offset: int, length: int) -> bytes:
        return super().read_at(max(0, offset - 1), length)


class Shifted(MemoryStore):
    """Ranges begin a byte early."""

    def open(self, key: str) -> MemoryObject:
        return ShiftedObject(self, key, *self.objects[key])


class OwnStepObject(MemoryObject):
    def at_step(self, place: str) -> MemoryObject:
        return self.reopen()


class OwnStep(MemoryStore):
    """Another step is never reached."""

    def open(self, key: str) -> MemoryObject:
        return OwnStepObject(self, key, *self.objects[key])


class StubbornWriter(MemoryWriter):
    def restart(self) -> None:
        pass


class Remembering(MemoryStore):
    """Beginning again forgets nothing."""

    def writer(self, key: str) -> MemoryWriter:
        return StubbornWriter(self, key)


class Keeping(MemoryStore):
    """What waits for no disk never goes."""

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        if durable:
            super().delete(place, names)


class Vague(MemoryStore):
    """What is not there is an error like any other."""

    def get(self, key: str, limit_bytes: int) -> bytes:
        try:
            return super().get(key, limit_bytes)
        except StorageError as error:
            raise StorageError(error.summary, errno=error.errno) from error


class FirstStays(MemoryStore):
    """Records are not replaced."""

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        if key not in self.objects:
            super().replace(key, data)


class Nameless(MemoryStore):
    """Addresses do not tell of which store they are."""

    def where(self, key: str = "") -> str:
        return key or "memory"


BROKEN: dict[str, type[MemoryStore]] = {
    "an_object_appears_whole_or_not_at_all": Early,
    "what_is_there_is_never_replaced": Replacing,
    "a_range_is_what_was_written": Shifted,
    "a_part_of_another_step_is_reached": OwnStep,
    "what_is_given_up_leaves_nothing": Remembering,
    "what_is_deleted_is_gone": Keeping,
    "what_is_not_there_is_missing": Vague,
    "a_record_is_replaced": FirstStays,
    "an_address_is_that_of_the_store_and_a_key": Nameless,
}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_store_is_noticed(check: str) -> None:
    with pytest.raises(AssertionError):
        getattr(stores, check)(BROKEN[check]())


def test_every_check_is_tested() -> None:
    assert {check.__name__ for check in STORE_CHECKS} == set(BROKEN)
