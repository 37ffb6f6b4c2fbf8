"""The samples of this rank, step after step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from .lanes import Lanes, laid
from .permutation import permuted
from .place import Place
from .shard_reader import Wanted
from .shards import ShardedDataset
from .steps import Share, shares


class ElasticSampler(Sampler[list[Any]]):
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

    def __iter__(self) -> Iterator[list[Any]]:
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

    def _indices(self, share: Share) -> list[Any]:
        assert self._place is not None
        places = np.arange(share.start, share.start + share.count)
        if self._shuffle:
            places = permuted(places, self.length, self.seed, self._place.epoch, self._place.passes)
        found: list[Any] = places.tolist()
        return found


class ShardSampler(ElasticSampler):
    """The same for a list of shards: what it hands out says which sample of which shard is meant.

    Its length is that of :attr:`ElasticSampler.length`, which is set when all shards' lengths are known.

    Attributes:
        lanes: of the pass under way.
    """

    def __init__(
        self,
        dataset: ShardedDataset[Any],
        *,
        seed: int,
        rank: int,
        ranks: int,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        super().__init__(0, seed=seed, rank=rank, ranks=ranks, shuffle=shuffle, drop_last=drop_last)
        self._dataset = dataset
        self.lanes = dataset.lanes
        self._laid: tuple[tuple[int, int, int, int], Lanes] | None = None

    def begin(self, place: Place) -> None:
        """The next iteration goes on from here; a pass that begins has the lanes that the data set asks for."""
        if not place.seen:
            self.lanes = self._dataset.lanes
        super().begin(place)

    def _indices(self, share: Share) -> list[Any]:
        lengths, shards = self._dataset.lengths, self._dataset.shards
        assert lengths is not None
        first = share.seen - share.size
        spots = self._lanes().spots(first, share.seen, share.start - first, share.count)
        return [
            Wanted(spot.lane, spot.shard, shards[spot.shard], spot.offset, int(lengths[spot.shard])) for spot in spots
        ]

    def _lanes(self) -> Lanes:
        """Of the pass; they are laid once in it."""
        assert self._place is not None and self._dataset.lengths is not None
        key = (self.seed, self._place.epoch, self._place.passes, self.lanes)
        if self._laid is None or self._laid[0] != key:
            order = np.arange(len(self._dataset.lengths))
            if self._shuffle:
                order = permuted(order, len(order), *key[:3])
            self._laid = key, laid(self._dataset.lengths, self.lanes, order)
        return self._laid[1]
