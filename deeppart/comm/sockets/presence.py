"""Which ranks are present in an operation of a channel, so that an error can name those that are not."""

from __future__ import annotations

import numpy as np

from deeppart.comm.base import Int64s


class Presence:
    """Who waits in which channel, as far as ranks have told each other: an error can name those that do not. Pure.

    A row has the number of the operation that each rank waits in, or 0; the larger number holds. What is new is passed
    on, so that all hear of all, though each rank talks to a few.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[int, Int64s] = {}
        self._new: set[int] = set()

    def merge(self, channel: int, row: Int64s) -> None:
        """What another rank, or this one, tells of a channel."""
        old = self._rows.setdefault(channel, np.zeros(self._size, dtype=np.int64))
        if row.size == old.size and (row > old).any():
            self._rows[channel] = np.maximum(old, row)
            self._new.add(channel)

    def row(self, channel: int) -> Int64s:
        """What is known of a channel."""
        return self._rows.get(channel, np.zeros(self._size, dtype=np.int64)).copy()

    def forget(self, channel: int) -> None:
        """No rank will wait in it any more."""
        self._rows.pop(channel, None)
        self._new.discard(channel)

    def news(self) -> list[tuple[int, bytes]]:
        """Channels of which more is known than at the last call, and the row of each."""
        found = [(channel, self._rows[channel].tobytes()) for channel in sorted(self._new)]
        self._new.clear()
        return found
