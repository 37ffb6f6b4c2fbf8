"""Points in time as records hold them: UTC, ISO 8601 with microseconds, sortable as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


def now() -> str:
    """This moment."""
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """A time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORMAT)


def seconds_of(text: str) -> float:
    """Seconds since 1970.

    Raises:
        ValueError, TypeError: this is no such text.
    """
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp()
