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
from .shards import VERSION, Lanes, SampleIndex, ShardedDataset, ShardReader, agree_on_lengths, check_lanes, lay_lanes
from .steps import DataPosition, MicroBatch, micro_batches


class ElasticSampler(Sampler[list[Any]]):
    """Micro-batches of indices for one rank: a ``batch_sampler`` for a DataLoader.

    A loader with workers takes micro-batches long before they are trained on. So the sampler has no place of its own
    that could be saved: it goes on from the :class:`DataPosition` that it is given, and notes what it has handed out,
    for the loader, which knows when it arrives (:class:`deeppart.elastic.ElasticDataLoader`).

    Args:
        length: samples of the data set.
        seed: of the order.
        rank: of so many ``ranks``.
        shuffle: in a new order in each pass, or in the order of the data set.
        drop_last: leave out the samples that do not fill a step.

    Example:
        >>> from deeppart.elastic import Batch, ElasticSampler, DataPosition
        >>> sampler = ElasticSampler(10, seed=0, rank=1, ranks=2, shuffle=False)
        >>> sampler.begin(DataPosition(epoch=0, passes=0, seen=0, batch=Batch(4)))
        >>> list(sampler)
        [[2, 3], [6, 7], [9]]
    """

    def __init__(
        self, length: int, *, seed: int, rank: int, ranks: int, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self.length, self.seed = length, seed
        self._rank, self._ranks = rank, ranks
        self._shuffle, self._drop_last = shuffle, drop_last
        self._position: DataPosition | None = None
        #: What has been handed out and has not been taken, oldest first.
        self.handed_out: deque[MicroBatch] = deque()

    def begin(self, position: DataPosition) -> None:
        """The next iteration goes on from here."""
        self._position = position
        self.handed_out.clear()

    def decide(self, position: DataPosition) -> None:
        """Use the batches that a position has for later, where the sampler has not come so far."""
        self._position = position

    def __iter__(self) -> Iterator[list[Any]]:
        """Indices of the micro-batches of this rank, up to the end of the pass."""
        assert self._position is not None, "begin() says where"
        seen = self._position.seen
        while seen < self.length:
            batch = self._position.batch_at(seen)
            if self._drop_last and self.length - seen < batch.size:
                return
            for micro_batch in micro_batches(seen, self.length, batch, self._rank, self._ranks):
                self.handed_out.append(micro_batch)
                yield self._indices(micro_batch)
                seen = micro_batch.seen

    def _indices(self, micro_batch: MicroBatch) -> list[Any]:
        assert self._position is not None
        places = np.arange(micro_batch.start, micro_batch.start + micro_batch.count)
        if self._shuffle:
            places = permuted(places, self.length, self.seed, self._position.epoch, self._position.passes)
        found: list[Any] = places.tolist()
        return found


class IndexedSampler(ElasticSampler):
    """The samples of a data set with a length, as a loader uses it.

    Attributes:
        reading: what a DataLoader reads by the indices that this hands out.
    """

    def __init__(self, reading: Any, length: int, **order: Any) -> None:
        super().__init__(length, **order)
        self.reading = reading

    @property
    def known_length(self) -> int | None:
        """Samples of an epoch; None until they are counted."""
        return self.length

    def checked_length(self, ranks: Ranks, name: str) -> int:
        """Make sure of the length, before each pass and whenever it is needed (collective)."""
        if (length := len(self.reading)) != self.length:
            raise ConfigError(
                "the data set has changed its length",
                expected=f"{self.length:,} samples, as when the loader was made",
                found=f"{length:,}",
                where=f"loader {name}",
                todo="make a new loader for other data",
            )
        return length

    def state(self) -> dict[str, Any]:
        """What checkpoints have of the data set beside the position."""
        return {}

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """Compare with what a checkpoint has of the data set, and go on from it; the position has the rest."""
        if "shards" in state:
            raise _other_kind(name, "shards", "samples by their number")

    def close(self) -> None:
        """A pass is over."""


class ShardSampler(IndexedSampler):
    """The same for a list of shards: what it hands out says which sample of which shard is meant.

    Attributes:
        lanes: of the pass under way.
    """

    def __init__(self, dataset: ShardedDataset[Any], **order: Any) -> None:
        super().__init__(ShardReader(dataset.open_shard, dataset.open_at, dataset.name), 0, **order)
        self._dataset = dataset
        self.lanes = dataset.lanes
        self._laid: tuple[tuple[int, int, int, int], Lanes] | None = None
        #: The digest of the lengths that a checkpoint has, where they are to be counted anew.
        self._expected: str | None = None

    def begin(self, position: DataPosition) -> None:
        """The next iteration goes on from here; a pass that begins has the lanes that the data set asks for."""
        if not position.seen:
            self.lanes = self._dataset.lanes
        super().begin(position)

    def _indices(self, micro_batch: MicroBatch) -> list[Any]:
        lengths, shards = self._dataset.lengths, self._dataset.shards
        assert lengths is not None
        first = micro_batch.seen - micro_batch.size
        spots = self._lanes().spots(first, micro_batch.seen, micro_batch.start - first, micro_batch.count)
        return [
            SampleIndex(spot.lane, spot.shard, shards[spot.shard], spot.offset, int(lengths[spot.shard]))
            for spot in spots
        ]

    def _lanes(self) -> Lanes:
        """Of the pass; they are laid once in it."""
        assert self._position is not None and self._dataset.lengths is not None
        key = (self.seed, self._position.epoch, self._position.passes, self.lanes)
        if self._laid is None or self._laid[0] != key:
            order = np.arange(len(self._dataset.lengths))
            if self._shuffle:
                order = permuted(order, len(order), *key[:3])
            self._laid = key, lay_lanes(self._dataset.lengths, self.lanes, order)
        return self._laid[1]

    @property
    def known_length(self) -> int | None:
        """Of all shards together."""
        return self._dataset.samples

    def checked_length(self, ranks: Ranks, name: str) -> int:
        """As of :class:`IndexedSampler`; samples are counted where lengths were not given."""
        agree_on_lengths(self._dataset, ranks)
        assert self._dataset.samples is not None
        if self._expected is not None:
            self._compare("lengths", self._expected, self._dataset.lengths_digest, name)
            self._expected = None
        self.length = self._dataset.samples
        return self.length

    def state(self) -> dict[str, Any]:
        """Their number, digests of their names and lengths, the lanes; and the lengths, if they had to be counted."""
        return {
            "shards": {
                "version": VERSION,
                "number": len(self._dataset.shards),
                "names": self._dataset.names,
                "lengths": self._dataset.lengths_digest or self._expected,
                "counted": self._dataset.counted,
                "lanes": self.lanes,
            }
        }

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """As of :class:`IndexedSampler`."""
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
        self.lanes = saved["lanes"]

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


def sampler_of(
    dataset: Dataset[Any] | ShardedDataset[Any], *, seed: int, ranks: Ranks, shuffle: bool, drop_last: bool
) -> IndexedSampler:
    """The samples of a data set, for a loader."""
    order = {
        "seed": _integer(seed),
        "rank": ranks.rank,
        "ranks": ranks.size,
        "shuffle": shuffle,
        "drop_last": drop_last,
    }
    if isinstance(dataset, ShardedDataset):
        check_lanes(dataset, ranks.size)
        return ShardSampler(dataset, **order)
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            "an iterable data set has no places that a job could go on at",
            found=type(dataset).__name__,
            todo="give deeppart.elastic.ShardedDataset a list of its shards, and a function that reads one",
        )
    return IndexedSampler(dataset, len(dataset), **order)  # type: ignore[arg-type]


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
