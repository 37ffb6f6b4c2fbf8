"""Points in time as records hold them: UTC, ISO 8601 with microseconds, sortable as text."""

from __future__ import annotations

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


def just_after(text: str) -> str:
    """One microsecond later; the text itself if it is no time, or the last there is."""
    try:
        moment = datetime.strptime(text, _FORMAT)  # noqa: DTZ007 - the text has its zone, and gets it again
        return (moment + timedelta(microseconds=1)).strftime(_FORMAT)
    except (ValueError, OverflowError):
        return text
