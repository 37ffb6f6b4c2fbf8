"""Reading ahead: the same items in the same order, one made in advance and no more, and nothing goes on at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from deeppart.save.ahead import read_ahead
from deeppart.save.workers import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, "deeppart-test")
    yield workers
    workers.close()


def test_one_is_made_while_another_is_in_use(workers: Workers) -> None:
    made: list[int] = []
    begun = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            if number == 1:
                begun.set()
            made.append(number)
            yield number

    ahead = read_ahead(items(), workers)
    assert next(ahead) == 0
    assert begun.wait(10)
    workers.submit(lambda: None).result(10)
    assert made == [0, 1]
    assert list(ahead) == [1, 2, 3]


def test_an_error_comes_where_its_item_would(workers: Workers) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("of the third")

    ahead = read_ahead(items(), workers)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="of the third"):
        next(ahead)


def test_who_stops_early_waits_for_what_is_being_made(workers: Workers) -> None:
    ended: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        time.sleep(0.2)
        ended.append(2)
        yield 2

    with closing(read_ahead(items(), workers)) as ahead:
        assert next(ahead) == 1
    assert ended == [2]
