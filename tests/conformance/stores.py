"""The suite that every store passes: what levels, manifests and records rely on.

``for check in STORE_CHECKS: check(store)``, each with a fresh store that is empty. A check raises AssertionError.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from deeppart.errors import CorruptFileError, MissingError, StorageError
from deeppart.storage import Store

_KEY, _OTHER, _MOST = "step/part", "step/other", 1000


def _refusal(operation: Callable[..., Any], *arguments: Any) -> StorageError | CorruptFileError | None:
    try:
        operation(*arguments)
    except (StorageError, CorruptFileError) as error:
        return error
    return None


def _made(store: Store, key: str, data: bytes) -> None:
    file = store.writer(key)
    file.write(data)
    file.commit()


def an_object_appears_whole_or_not_at_all(store: Store) -> None:
    """Nothing has its key before ``commit``; everything is there afterwards, also in what is put at once."""
    file = store.writer(_KEY)
    file.write(b"first, ")
    assert store.stat(_KEY) is None
    file.write(memoryview(b"second"))
    assert store.stat(_KEY) is None
    file.commit()
    store.put_new(_OTHER, b"at once")
    assert store.get(_KEY, _MOST) == b"first, second" and store.get(_OTHER, _MOST) == b"at once"
    assert sorted(store.list("step")) == ["other", "part"] and store.list() == ["step"]


def what_is_there_is_never_replaced(store: Store) -> None:
    """Of two who make one object the first has made it."""
    _made(store, _KEY, b"first")
    for refusal in (_refusal(_made, store, _KEY, b"second"), _refusal(store.put_new, _KEY, b"third")):
        assert isinstance(refusal, StorageError) and refusal.errno == errno.EEXIST
    assert store.get(_KEY, _MOST) == b"first"


def a_range_is_what_was_written(store: Store) -> None:
    """Any range of an object can be read, and none that is not in it."""
    data = bytes(range(256)) * 40
    _made(store, _KEY, data)
    found = store.stat(_KEY)
    with store.open(_KEY) as source:
        assert found is not None and source.size == found.nbytes == len(data)
        assert bytes(source.read_at(0, len(data))) == data and bytes(source.read_at(300, 0)) == b""
        buffer = memoryview(bytearray(1000))
        source.read_into(257, buffer)
        assert buffer == data[257:1257]
        assert isinstance(_refusal(source.read_at, len(data) - 1, 2), CorruptFileError)
    assert isinstance(_refusal(store.get, _KEY, len(data) - 1), CorruptFileError)


def a_part_of_another_step_is_reached(store: Store) -> None:
    """By who has opened one of the same name: parts refer to earlier ones."""
    for place in ("step", "earlier"):
        _made(store, f"{place}/part", place.encode())
    with store.open(_KEY) as source:
        assert bytes(source.at_step("earlier").read_at(0, 4)) == b"earl"
        assert isinstance(_refusal(source.at_step, "nowhere"), MissingError)
        assert bytes(source.read_at(0, 4)) == b"step"


def what_is_given_up_leaves_nothing(store: Store) -> None:
    """``abort`` at any time; and ``restart`` forgets what was written."""
    file = store.writer(_KEY)
    file.write(b"given up")
    file.abort()
    file.abort()
    assert store.stat(_KEY) is None
    file = store.writer(_KEY)
    file.write(b"forgotten, and longer")
    file.restart()
    file.write(b"kept")
    file.commit()
    assert store.get(_KEY, _MOST) == b"kept" and store.list("step") == ["part"]


def what_is_deleted_is_gone(store: Store) -> None:
    """The rest of its place stays, and the place goes with the last."""
    for durable in (True, False):
        for key in (_KEY, _OTHER, "elsewhere/part"):
            _made(store, key, b"x")
        store.delete("step", ["part"], durable=durable)
        assert store.stat(_KEY) is None and store.list("step") == ["other"]
        store.delete("step", ["other"])
        assert store.list() == ["elsewhere"]
        store.delete("elsewhere", ["part"])


def what_is_not_there_is_missing(store: Store) -> None:
    """That is told from a store that fails."""
    _made(store, _OTHER, b"x")
    assert store.stat(_KEY) is None and store.stat("nowhere/part") is None
    for operation, *arguments in (
        (store.get, _KEY, _MOST),
        (store.open, _KEY),
        (store.list, "nowhere"),
        (store.delete, "step", ["part"]),
    ):
        refusal = _refusal(operation, *arguments)
        assert isinstance(refusal, MissingError) and refusal.errno == errno.ENOENT, operation


def a_record_is_replaced(store: Store) -> None:
    """Beside the steps, by what is put last."""
    for number in range(4):
        store.replace("record.json", b"x" * (5 - number), durable=bool(number % 2))
        assert store.get("record.json", _MOST) == b"x" * (5 - number)
    assert store.list() == ["record.json"]


def an_address_is_that_of_the_store_and_a_key(store: Store) -> None:
    """So a rank opens by it what another one has named."""
    assert store.where(_KEY) == f"{store.where()}/{_KEY}"


STORE_CHECKS: tuple[Callable[[Store], None], ...] = (
    an_object_appears_whole_or_not_at_all,
    what_is_there_is_never_replaced,
    a_range_is_what_was_written,
    a_part_of_another_step_is_reached,
    what_is_given_up_leaves_nothing,
    what_is_deleted_is_gone,
    what_is_not_there_is_missing,
    a_record_is_replaced,
    an_address_is_that_of_the_store_and_a_key,
)
