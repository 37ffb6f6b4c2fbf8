"""Which ranks wait in an operation of a channel, so that an error can name the others."""

from __future__ import annotations

import numpy as np

from deeppart.comm.base import Int64s


class Presence:
    """Tracks which ranks wait in which channel, as far as they have notified each other. Pure.

    A row has the number of the operation in which each rank waits, or 0; larger numbers are newer. Updates are passed
    on, so that all ranks receive them although each one only sends to a few.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[int, Int64s] = {}
        self._new: set[int] = set()

    def merge(self, channel: int, row: Int64s) -> None:
        """Merge the row of this or another rank for a channel."""
        old = self._rows.setdefault(channel, np.zeros(self._size, dtype=np.int64))
        if row.size == old.size and (row > old).any():
            self._rows[channel] = np.maximum(old, row)
            self._new.add(channel)

    def row(self, channel: int) -> Int64s:
        """The merged row of a channel."""
        return self._rows.get(channel, np.zeros(self._size, dtype=np.int64)).copy()

    def forget(self, channel: int) -> None:
        """Drop a channel in which no rank will wait again."""
        self._rows.pop(channel, None)
        self._new.discard(channel)

    def news(self) -> list[tuple[int, bytes]]:
        """Channels with updates since the last call, and the row of each."""
        found = [(channel, self._rows[channel].tobytes()) for channel in sorted(self._new)]
        self._new.clear()
        return found
