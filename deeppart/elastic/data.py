"""What a loader hands out samples of: a map-style data set, or shards."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Protocol

from torch.utils.data import Dataset, IterableDataset

from deeppart.errors import ConfigError, RestoreError

from .counting import check_lanes, settle
from .lanes import VERSION
from .ranks import Ranks
from .sampler import ElasticSampler, ShardSampler
from .shard_reader import ShardReader
from .shards import ShardedDataset


class Data(Protocol):
    """A data set as a loader uses it.

    Attributes:
        reading: what a DataLoader reads by the sampler's indices.
        sampler: its length is right after :meth:`settle`.
    """

    reading: Any
    sampler: ElasticSampler

    @property
    def length(self) -> int | None:
        """Samples of an epoch; None as long as nobody has counted."""
        ...

    def settle(self, ranks: Ranks, name: str) -> int:
        """Make sure of the length, before each pass and whenever it is needed (collective)."""
        ...

    def state(self) -> dict[str, Any]:
        """What checkpoints have of it beside the place."""
        ...

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """Compare with what a checkpoint has of it, and go on from it."""
        ...

    def close(self) -> None:
        """A pass is over."""
        ...


class MapStyle:
    """A data set with a length, and samples by their number; see :class:`Data`."""

    def __init__(self, dataset: Dataset[Any], sampler: ElasticSampler) -> None:
        self.reading: Any = dataset
        self.sampler = sampler

    @property
    def length(self) -> int | None:
        """As when the loader was made."""
        return self.sampler.length

    def settle(self, ranks: Ranks, name: str) -> int:
        """See :class:`Data`."""
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
        """Nothing."""
        return {}

    def take(self, state: Mapping[str, Any], name: str) -> None:
        """See :class:`Data`; :func:`deeppart.elastic.place.from_state` compares the rest."""
        if "shards" in state:
            raise _other_kind(name, "shards", "samples by their number")

    def close(self) -> None:
        """Nothing is open."""


class Sharded:
    """A list of shards; see :class:`Data`."""

    def __init__(self, dataset: ShardedDataset[Any], sampler: ShardSampler) -> None:
        self.reading: Any = ShardReader(dataset.open_shard, dataset.open_at, dataset.name)
        self.sampler: ElasticSampler = sampler
        self._shards = sampler
        self._dataset = dataset
        #: The digest of the lengths that a checkpoint has, where they are to be counted anew.
        self._expected: str | None = None

    @property
    def length(self) -> int | None:
        """Of all shards together."""
        return self._dataset.samples

    def settle(self, ranks: Ranks, name: str) -> int:
        """See :class:`Data`."""
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
        """See :class:`Data`."""
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
    return MapStyle(dataset, sampler)


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
