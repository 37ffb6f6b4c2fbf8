"""Where every thread of the library begins and ends, but for those of short-lived pools: none ends in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(run: Callable[[], object], name: str, failed: Callable[[BaseException], object]) -> threading.Thread:
    """Run something on a daemon thread."""

    def body() -> None:
        try:
            run()
        except BaseException as error:
            failed(error)

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread
