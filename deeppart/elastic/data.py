"""Samplers: the micro-batches of this rank, for map-style data sets and for shards."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, Sampler

from deeppart.errors import ConfigError

from .permutation import permuted
from .ranks import Ranks
from .shards import VERSION, Lanes, SampleIndex, ShardedDataset, ShardReader, agree_on_lengths, check_lanes
from .steps import DataPosition, MicroBatch, micro_batches, mismatch

_OTHER_KIND = "the data set is of another kind than in the checkpoint"


class ElasticSampler(Sampler[list[Any]]):
    """Micro-batches of indices for one rank: a ``batch_sampler`` for a DataLoader.

    Workers of a DataLoader draw micro-batches long before they are used, so the sampler has no position to save: it
    starts at the :class:`DataPosition` it is given and records what it has handed out, for
    :class:`deeppart.elastic.ElasticDataLoader`, which knows when a micro-batch is used.

    Args:
        length: samples of the data set.
        seed: of the order.
        rank: of this process.
        ranks: world size.
        shuffle: a new order in each pass instead of the order of the data set.
        drop_last: leave out samples at the end that do not fill a step.

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
        #: Micro-batches handed out and not yet used, oldest first.
        self.handed_out: deque[MicroBatch] = deque()

    def begin(self, position: DataPosition) -> None:
        """Set the start of the next iteration."""
        self._position = position
        self.handed_out.clear()

    def __iter__(self) -> Iterator[list[Any]]:
        """Indices of this rank's micro-batches up to the end of the pass."""
        assert self._position is not None, "call begin() first"
        seen, batch = self._position.seen, self._position.batch
        while seen < self.length:
            if self._drop_last and self.length - seen < batch.size:
                return
            for micro_batch in micro_batches(seen, self.length, batch, self._rank, self._ranks):
                self.handed_out.append(micro_batch)
                yield self._indices(micro_batch)
                seen = micro_batch.seen

    def _indices(self, micro_batch: MicroBatch) -> list[Any]:
        assert self._position is not None
        indices = np.arange(micro_batch.start, micro_batch.start + micro_batch.count)
        if self._shuffle:
            indices = permuted(indices, self.length, self.seed, self._position.epoch, self._position.passes)
        found: list[Any] = indices.tolist()
        return found


class IndexedSampler(ElasticSampler):
    """A sampler for a map-style data set.

    Attributes:
        dataset: what the DataLoader reads with the indices.
    """

    def __init__(self, dataset: Any, length: int, **options: Any) -> None:
        super().__init__(length, **options)
        self.dataset = dataset

    @property
    def known_length(self) -> int | None:
        """Samples of an epoch; None until they are counted."""
        return self.length

    def check_length(self, ranks: Ranks, name: str) -> int:
        """Return the length, before each pass, after checking that it has not changed (collective)."""
        if (length := len(self.dataset)) != self.length:
            raise ConfigError(
                "the data set has changed its length",
                expected=f"{self.length:,} samples, as when the loader was made",
                found=f"{length:,}",
                where=f"loader {name}",
                todo="make a new loader for other data",
            )
        return length

    def state(self) -> dict[str, Any]:
        """What checkpoints contain about the data set in addition to the position."""
        return {}

    def load_state(self, state: Mapping[str, Any], name: str) -> None:
        """Check that the checkpoint is of the same data set, and load its state."""
        if "shards" in state:
            raise mismatch(_OTHER_KIND, "shards", "a map-style data set", name)

    def end_pass(self) -> None:
        """Release resources after a pass."""


class ShardSampler(IndexedSampler):
    """A sampler for shards, whose indices are :class:`SampleIndex`.

    Attributes:
        lanes: number of lanes in the current pass.
    """

    def __init__(self, shards: ShardedDataset[Any], **options: Any) -> None:
        super().__init__(ShardReader(shards), 0, **options)
        self._shards = shards
        self.lanes = shards.lanes
        self._lanes_of_pass: tuple[tuple[int, int, int, int], Lanes] | None = None
        #: Digest of the lengths in the checkpoint, to compare with lengths that are not counted yet.
        self._expected_lengths: str | None = None

    def begin(self, position: DataPosition) -> None:
        """Set the start of the next iteration; a new pass has the configured number of lanes."""
        if not position.seen:
            self.lanes = self._shards.lanes
        super().begin(position)

    def _indices(self, micro_batch: MicroBatch) -> list[Any]:
        lengths, shards = self._shards.lengths, self._shards.shards
        assert lengths is not None
        first = micro_batch.seen - micro_batch.size
        samples = self._lanes().locate(first, micro_batch.seen, micro_batch.start - first, micro_batch.count)
        return [SampleIndex(lane, shard, shards[shard], offset, int(lengths[shard])) for lane, shard, offset in samples]

    def _lanes(self) -> Lanes:
        assert self._position is not None and self._shards.lengths is not None
        key = (self.seed, self._position.epoch, self._position.passes, self.lanes)
        if self._lanes_of_pass is None or self._lanes_of_pass[0] != key:
            order = np.arange(len(self._shards.lengths))
            if self._shuffle:
                order = permuted(order, len(order), *key[:3])
            self._lanes_of_pass = key, Lanes.of(self._shards.lengths, self.lanes, order)
        return self._lanes_of_pass[1]

    @property
    def known_length(self) -> int | None:
        """Samples of all shards; None until they are counted."""
        return self._shards.samples

    def check_length(self, ranks: Ranks, name: str) -> int:
        """Return the number of samples, after counting them if their number was not given (collective)."""
        agree_on_lengths(self._shards, ranks)
        assert self._shards.samples is not None
        if self._expected_lengths is not None:
            _check_same("lengths", self._expected_lengths, self._shards.lengths_digest, name)
            self._expected_lengths = None
        self.length = self._shards.samples
        return self.length

    def state(self) -> dict[str, Any]:
        """Number of shards and lanes, digests of names and lengths, and the lengths if they were counted."""
        return {
            "shards": {
                "version": VERSION,
                "number": len(self._shards.shards),
                "names": self._shards.names,
                "lengths": self._shards.lengths_digest or self._expected_lengths,
                "counted": self._shards.counted,
                "lanes": self.lanes,
            }
        }

    def load_state(self, state: Mapping[str, Any], name: str) -> None:
        """Check that the checkpoint is of the same shards, and load its lengths and lanes."""
        if "shards" not in state:
            raise mismatch(_OTHER_KIND, "a map-style data set", "shards", name)
        saved = state["shards"]
        _check_same("version", saved["version"], VERSION, name)
        _check_same("number", saved["number"], len(self._shards.shards), name)
        _check_same("names", saved["names"], self._shards.names, name)
        if self._shards.lengths is None and saved["counted"] is not None:
            self._shards.load_counted(saved["counted"])
        if self._shards.lengths is None:
            self._expected_lengths = saved["lengths"]
        elif saved["lengths"] is not None:
            _check_same("lengths", saved["lengths"], self._shards.lengths_digest, name)
        self.lanes = saved["lanes"]

    def end_pass(self) -> None:
        """Close the shards that this process has open."""
        self.dataset.close()


def make_sampler(
    dataset: Dataset[Any] | ShardedDataset[Any], *, seed: int, ranks: Ranks, shuffle: bool, drop_last: bool
) -> IndexedSampler:
    """The sampler for a data set."""
    try:
        seed = operator.index(seed)  # numpy's integers become Python's, for checkpoints
    except TypeError:
        raise ConfigError("the seed of an order is not an integer", found=repr(seed)) from None
    options = {"seed": seed, "rank": ranks.rank, "ranks": ranks.size, "shuffle": shuffle, "drop_last": drop_last}
    if isinstance(dataset, ShardedDataset):
        check_lanes(dataset, ranks.size)
        return ShardSampler(dataset, **options)
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            "an iterable data set has no positions to continue from",
            found=type(dataset).__name__,
            todo="use deeppart.elastic.ShardedDataset with a list of its shards and a function that reads one",
        )
    return IndexedSampler(dataset, len(dataset), **options)  # type: ignore[arg-type]


_DIFFERENCES = {
    "version": ("are assigned to lanes in another way", "version {} of the assignment"),
    "number": ("are others", "{} shards"),
    "names": ("are others, or in another order", "names with the digest {}"),
    "lengths": ("have other lengths", "lengths with the digest {}"),
}


def _check_same(what: str, expected: Any, found: Any, name: str) -> None:
    if expected != found:
        difference, text = _DIFFERENCES[what]
        todo = "use the same list, sorted, with names that do not change (`name_of`)"
        summary = f"the shards {difference} than in the checkpoint"
        raise mismatch(summary, text.format(expected), str(found), name, todo)
