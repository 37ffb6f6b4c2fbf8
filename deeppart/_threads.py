"""Starts every thread of the library, except those of short-lived pools: no error of a thread goes unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
