"""The samples of this rank, step after step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from .permutation import permuted
from .place import Place
from .steps import Share, shares


class ElasticSampler(Sampler[list[int]]):
    """Micro-batches of indices for one rank: a ``batch_sampler`` for a DataLoader.

    A loader with workers takes micro-batches long before they are trained on. So the sampler has no place of its own
    that could be saved: it goes on from the :class:`Place` that it is given, and notes what it has handed out, for
    whoever knows when it arrives (:class:`deeppart.elastic.ElasticDataLoader`).

    Args:
        length: samples of the data set.
        seed: of the order.
        rank: of so many ``ranks``.
        shuffle: in a new order in each pass, or in the order of the data set.
        drop_last: leave out the samples that do not fill a step.

    Example:
        >>> from deeppart.elastic import Batch, ElasticSampler, Place
        >>> sampler = ElasticSampler(10, seed=0, rank=1, ranks=2, shuffle=False)
        >>> sampler.begin(Place(epoch=0, passes=0, seen=0, batch=Batch(4)))
        >>> list(sampler)
        [[2, 3], [6, 7], [9]]
    """

    def __init__(
        self, length: int, *, seed: int, rank: int, ranks: int, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self.length, self.seed = length, seed
        self._rank, self._ranks = rank, ranks
        self._shuffle, self._drop_last = shuffle, drop_last
        self._place: Place | None = None
        #: What has been handed out and has not been taken, oldest first.
        self.handed_out: deque[Share] = deque()

    def begin(self, place: Place) -> None:
        """The next iteration goes on from here."""
        self._place = place
        self.handed_out.clear()

    def decide(self, place: Place) -> None:
        """Use the batch that a place has for later, if the sampler has not come so far; see :meth:`Place.batch_at`."""
        self._place = place

    def __iter__(self) -> Iterator[list[int]]:
        """Indices of the micro-batches of this rank, up to the end of the pass."""
        assert self._place is not None, "begin() says where"
        seen = self._place.seen
        while seen < self.length:
            batch = self._place.batch_at(seen)
            if self._drop_last and self.length - seen < batch.size:
                return
            for share in shares(seen, self.length, batch, self._rank, self._ranks):
                self.handed_out.append(share)
                yield self._indices(share)
                seen = share.seen

    def _indices(self, share: Share) -> list[int]:
        assert self._place is not None
        places = np.arange(share.start, share.start + share.count)
        if self._shuffle:
            places = permuted(places, self.length, self.seed, self._place.epoch, self._place.passes)
        found: list[int] = places.tolist()
        return found
