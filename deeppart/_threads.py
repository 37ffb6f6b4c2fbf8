"""Starts every thread of the library, except those of short-lived pools: no error of a thread goes unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def start_thread(run: Callable[[], object], name: str, failed: Callable[[BaseException], object]) -> threading.Thread:
    """Run a function on a daemon thread; ``failed`` is called with an error that ends it."""

    def body() -> None:
        try:
            run()
        except BaseException as error:
            failed(error)

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


def on_threads(do: Callable[[T], object], items: Iterable[T], threads: int, name: str) -> None:
    """Call a function for each item, on a few threads; an error is raised once none of them is at work any more."""
    with ThreadPoolExecutor(threads, name) as pool:
        try:
            for _ in pool.map(do, items):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)  # and waits: the memory will be reused
            raise
