"""The samples of this rank, step after step: of a map-style data set, or of shards."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, Sampler

from deeppart.errors import ConfigError, RestoreError

from .permutation import permuted
from .ranks import Ranks
from .shards import VERSION, Lanes, ShardedDataset, ShardReader, Wanted, check_lanes, laid, settle
from .steps import Place, Share, shares


class ElasticSampler(Sampler[list[Any]]):
    """Micro-batches of indices for one rank: a ``batch_sampler`` for a DataLoader.

    A loader with workers takes micro-batches long before they are trained on. So the sampler has no place of its own
    that could be saved: it goes on from the :class:`Place` that it is given, and notes what it has handed out, for
    the loader, which knows when it arrives (:class:`deeppart.elastic.ElasticDataLoader`).

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


def data_of(
    dataset: Dataset[Any] | ShardedDataset[Any], *, seed: int, ranks: Ranks, shuffle: bool, drop_last: bool
) -> Data:
    """What a loader needs of a data set."""
    seed = _integer(seed)
    if isinstance(dataset, ShardedDataset):
        check_lanes(dataset, ranks.size)
        sharded = ShardSampler(
            dataset, seed=seed, rank=ranks.rank, ranks=ranks.size, shuffle=shuffle, drop_last=drop_last
        )
        return Sharded(dataset, sharded)
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            "an iterable data set has no places that a job could go on at",
            found=type(dataset).__name__,
            todo="give deeppart.elastic.ShardedDataset a list of its shards, and a function that reads one",
        )
    length = len(dataset)  # type: ignore[arg-type]
    sampler = ElasticSampler(length, seed=seed, rank=ranks.rank, ranks=ranks.size, shuffle=shuffle, drop_last=drop_last)
    return Data(dataset, sampler)


class Data:
    """A data set with a length, and samples by their number, as a loader uses it.

    ``reading`` is what a DataLoader reads by the sampler's indices; the sampler's length is right after :meth:`settle`.
    """

    def __init__(self, reading: Any, sampler: ElasticSampler) -> None:
        self.reading, self.sampler = reading, sampler

    @property
    def length(self) -> int | None:
        """Samples of an epoch; None until they are counted."""
        return self.sampler.length

    def settle(self, ranks: Ranks, name: str) -> int:
        """Make sure of the length, before each pass and whenever it is needed (collective)."""
        if (length := len(self.reading)) != self.sampler.length:
            raise ConfigError(
                "the data set has changed its length",
                expected=f"{self.sampler.length:,} samples, as when the loader was made",
                found=f"{length:,}",
                where=f"loader {name}",
                todo="make a new loader for other data",
            )
        return length

    def state(self) -> dict[str, Any]:
        """What checkpoints have of it beside the place."""
        return {}

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """Compare with what a checkpoint has of it, and go on from it; the place has the rest."""
        if "shards" in state:
            raise _other_kind(name, "shards", "samples by their number")

    def close(self) -> None:
        """A pass is over."""


class Sharded(Data):
    """A list of shards."""

    def __init__(self, dataset: ShardedDataset[Any], sampler: ShardSampler) -> None:
        super().__init__(ShardReader(dataset.open_shard, dataset.open_at, dataset.name), sampler)
        self._shards = sampler
        self._dataset = dataset
        #: The digest of the lengths that a checkpoint has, where they are to be counted anew.
        self._expected: str | None = None

    @property
    def length(self) -> int | None:
        """Of all shards together."""
        return self._dataset.samples

    def settle(self, ranks: Ranks, name: str) -> int:
        """As of :class:`Data`; samples are counted where lengths were not given."""
        settle(self._dataset, ranks)
        assert self._dataset.samples is not None
        if self._expected is not None:
            self._compare("lengths", self._expected, self._dataset.lengths_digest, name)
            self._expected = None
        self.sampler.length = self._dataset.samples
        return self.sampler.length

    def state(self) -> dict[str, Any]:
        """Their number, digests of their names and lengths, the lanes; and the lengths, if they had to be counted."""
        return {
            "shards": {
                "version": VERSION,
                "number": len(self._dataset.shards),
                "names": self._dataset.names,
                "lengths": self._dataset.lengths_digest or self._expected,
                "counted": self._dataset.counted,
                "lanes": self._shards.lanes,
            }
        }

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """As of :class:`Data`."""
        if "shards" not in state:
            raise _other_kind(name, "samples by their number", "shards")
        saved = state["shards"]
        self._compare("version", saved["version"], VERSION, name)
        self._compare("number", saved["number"], len(self._dataset.shards), name)
        self._compare("names", saved["names"], self._dataset.names, name)
        if self._dataset.lengths is None and saved["counted"] is not None:
            self._dataset.take_counted(saved["counted"])
        if self._dataset.lengths is None:
            self._expected = saved["lengths"]
        elif saved["lengths"] is not None:
            self._compare("lengths", saved["lengths"], self._dataset.lengths_digest, name)
        self._shards.lanes = saved["lanes"]

    def close(self) -> None:
        """Close the shards that this process has open."""
        self.reading.close()

    def _compare(self, what: str, expected: Any, found: Any, name: str) -> None:
        texts = {
            "version": ("laid out in another way", "version {} of the way in which shards are laid into lanes"),
            "number": ("others", "{} shards"),
            "names": ("others, or in another order", "names with the digest {}"),
            "lengths": ("of other lengths", "lengths with the digest {}"),
        }
        if expected != found:
            raise RestoreError(
                f"the shards are {texts[what][0]} than when the checkpoint was made",
                expected=texts[what][1].format(expected),
                found=str(found),
                where=f"loader {name}",
                todo="give the same list, sorted, with names that do not change (`name_of`); or restore the rest, and "
                "begin anew with `loader.start_over(epoch)`",
            )


def _integer(seed: Any) -> int:
    """Of numpy's integers, too; checkpoints have those of Python."""
    try:
        return operator.index(seed)
    except TypeError:
        raise ConfigError("the seed of an order is not an integer", found=repr(seed)) from None


def _other_kind(name: str, then: str, now: str) -> RestoreError:
    return RestoreError(
        "the data set is of another kind than when the checkpoint was made",
        expected=then,
        found=now,
        where=f"loader {name}",
        todo="give the same data set; or restore the rest, and begin anew with `loader.start_over(epoch)`",
    )
