"""Which sample of which shard has a place in an epoch's order. Pure.

The samples of an epoch are laid in a line: shard after shard, in the epoch's order of shards. The line is cut into
*lanes*, whose lengths differ by one at most, and places take a sample of each lane in turn. So a step has samples of
many shards, and each lane is read from its beginning to its end. The number of lanes is one of the order's, as the seed
is; it is not the number of ranks (MosaicML's Streaming calls the same *canonical nodes*).

Which samples a step has follows from its places. Within the step they are handed out lane by lane: a rank, which has a
run of them, reads a few lanes, the same ones in each step if steps are multiples of the lanes. Two ranks share a lane
at most where their runs meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .permutation import Int64s

#: Of the way in which shards are laid into lanes. Checkpoints name it: another one would give samples twice.
VERSION = 1


class Spot(NamedTuple):
    """Where a sample is.

    Attributes:
        lane: by which it is read.
        shard: its number, in the list of all shards.
        offset: of the sample in the shard.
    """

    lane: int
    shard: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The lanes of one pass over the data.

    Attributes:
        order: numbers of the shards, in the order of the pass: int64[shards].
        ends: samples up to the end of each of these: int64[shards].
        count: of lanes.

    Example:
        >>> import numpy as np
        >>> from deeppart.elastic.lanes import laid
        >>> lanes = laid(np.array([3, 2, 4]), 2, np.array([2, 0, 1]))  # shard 2 first, then 0, then 1
        >>> [(spot.shard, spot.offset) for spot in lanes.spots(0, 4)]  # lane 0 has five samples, and lane 1 has four
        [(2, 0), (2, 1), (0, 1), (0, 2)]
        >>> [(spot.shard, spot.offset) for spot in lanes.spots(4, 9)]
        [(2, 2), (2, 3), (0, 0), (1, 0), (1, 1)]
    """

    order: Int64s
    ends: Int64s
    count: int

    def spots(self, first: int, end: int, start: int = 0, count: int | None = None) -> list[Spot]:
        """Samples of a step that has the places from ``first`` to ``end``, exclusively."""
        places = np.arange(first, end)
        chosen = np.argsort(places % self.count, kind="stable")[start : None if count is None else start + count]
        lanes, depths = places[chosen] % self.count, places[chosen] // self.count
        each, more = divmod(int(self.ends[-1]), self.count)
        on_line = lanes * each + np.minimum(lanes, more) + depths
        at = np.searchsorted(self.ends, on_line, side="right")
        starts = np.where(at > 0, self.ends[at - 1], 0)
        return [
            Spot(*found)
            for found in zip(lanes.tolist(), self.order[at].tolist(), (on_line - starts).tolist(), strict=True)
        ]


def laid(lengths: Int64s, count: int, order: Int64s) -> Lanes:
    """Lay shards into lanes."""
    return Lanes(order, np.cumsum(lengths[order]), min(count, len(lengths)))
