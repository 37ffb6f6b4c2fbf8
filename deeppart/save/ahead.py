"""Reads ahead: the next item of an iterator is made on another thread while the present one is in use."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from deeppart.save.workers import Workers

T = TypeVar("T")
_END = object()


def read_ahead(items: Iterator[T], workers: Workers) -> Generator[T, None, None]:
    """The items of an iterator, in order, each begun when the one before is handed out.

    What the iterator raises comes out where its item would. Close the generator if not all are taken: it waits for the
    one that is being made, which may be reading into memory.
    """
    following = workers.submit(next, items, _END)
    try:
        while (item := following.result()) is not _END:
            following = workers.submit(next, items, _END)
            yield item  # type: ignore[misc]  # it is no _END
    finally:
        following.exception()
