"""Points in time as records hold them: UTC, ISO 8601 with microseconds, sortable as text."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


def now() -> str:
    """This moment."""
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """A time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORMAT)


def seconds_of(text: str) -> float:
    """Seconds since 1970."""
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp()


class CommitClock:
    """Times of commits, each after all that were there before, wherever the clock of the machine is set.

    By these times `keep` tells which of the steps that earlier runs have committed is the older. May be used by several
    threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""

    def saw(self, created: str) -> None:
        """There is a commit of this time."""
        with self._lock:
            self._last = max(self._last, created)

    def now(self) -> str:
        """This moment, or the one after the last commit that is known."""
        with self._lock:
            self._last = max(now(), _after(self._last))
            return self._last


def _after(text: str) -> str:
    """One microsecond later; the text itself if it is no time, or the last there is."""
    try:
        moment = datetime.strptime(text, _FORMAT)  # noqa: DTZ007 - the text has its zone, and gets it again
        return (moment + timedelta(microseconds=1)).strftime(_FORMAT)
    except (ValueError, OverflowError):
        return text
