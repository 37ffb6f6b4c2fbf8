"""Data sets made of shards that are read sequentially: text files, tar archives, parquet files.

Concatenate the shards in the epoch's order, and divide this sequence of samples into *lanes* whose lengths differ by at
most one. The order of the epoch takes one sample of each lane in turn. So a step mixes samples of many shards, and each
lane is read sequentially. The number of lanes belongs to the order, like the seed, and not to the number of ranks
(MosaicML's Streaming calls them *canonical nodes*).

Within a step, samples are distributed lane by lane: each rank gets a contiguous run of them and reads few lanes, the
same ones in each step if the batch size is a multiple of the number of lanes. Only at the ends of runs do two ranks
read the same lane.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from deeppart.config import check_count
from deeppart.errors import ConfigError, RanksDisagreeError, RemoteRankError

from .permutation import MAX_LENGTH, Int64s
from .ranks import Ranks

#: Identifies a shard: a path, a URL, a (file, row group).
S = TypeVar("S")
#: Default number of lanes, and so of shards that all ranks together have open.
LANES = 64
#: Version of the assignment of shards to lanes, stored in checkpoints: with another one samples would be repeated.
VERSION = 1
_END = object()


class ShardedDataset(Generic[S]):
    r"""A list of shards and a function that reads one, for :class:`deeppart.elastic.ElasticDataLoader`.

    In each epoch the shards get a new order, and ``lanes`` of them are read at a time by all ranks together; a step has
    a sample of each lane in turn. The order within a shard stays, so write shards in a random order if that matters.

    A rank reads and skips samples of other ranks in its lanes. Let ``open_shard`` yield samples as they are stored and
    decode them in the loader's ``collate_fn``, which gets the rank's own samples only; or give ``open_at`` if the
    format has an index.

    Args:
        shards: paths, URLs..., the same in the same order on every rank.
        open_shard: returns the samples of a shard, always in the same order.
        lengths: number of samples of each shard; empty shards are never opened. By default all ranks together count
            them once by reading everything, and checkpoints keep the result.
        open_at: returns the samples of a shard from an index on, for formats that can seek.
        lanes: shards that are read at a time, at least as many as ranks. It is a part of the order: do not change it
            with the number of ranks. A changed number takes effect with the next pass.
        name_of: returns the name of a shard, of which checkpoints keep a digest; ``os.path.basename`` if directories
            may change.

    Raises:
        ConfigError: there are no shards; invalid lengths or lanes.

    Example:
        >>> from deeppart.elastic import ElasticDataLoader, Progress, ShardedDataset
        >>> texts = {"a.txt": "1 2 3", "b.txt": "4 5", "c.txt": "6 7 8 9"}  # files, of which samples are words
        >>> data = ShardedDataset(list(texts), lambda name: map(int, texts[name].split()), lanes=2)
        >>> loader = ElasticDataLoader(data, batch_size=4, shuffle=False, progress=Progress())
        >>> [batch.tolist() for batch in loader]  # two samples of each lane
        [[1, 2, 6, 7], [3, 4, 8, 9], [5]]
    """

    def __init__(
        self,
        shards: Sequence[S],
        open_shard: Callable[[S], Iterable[Any]],
        lengths: Sequence[int] | None = None,
        *,
        open_at: Callable[[S, int], Iterable[Any]] | None = None,
        lanes: int = LANES,
        name_of: Callable[[S], str] = str,
    ) -> None:
        if isinstance(shards, str | Mapping) or not (hasattr(shards, "__len__") and hasattr(shards, "__getitem__")):
            raise ConfigError(
                "shards is not a list",
                expected="a list of names, in the same order on every rank",
                found=type(shards).__name__,
                todo="sort the result of glob()",
            )
        if not len(shards):
            raise ConfigError("a data set has no shards", todo="check the pattern or the list that names them")
        check_count("lanes", lanes, "lanes")
        self.shards = shards
        self.open_shard = open_shard
        self.open_at = open_at
        self.lanes = lanes
        self._name_of = name_of
        #: Samples of each shard, int64[shards]; None until they are counted.
        self.lengths: Int64s | None = None
        #: Digest of the lengths; None until they are counted.
        self.lengths_digest: str | None = None
        #: The compressed lengths for checkpoints; None unless they were counted.
        self.counted: str | None = None
        #: Whether all ranks are known to have the same shards.
        self.agreed = False
        if lengths is not None:
            self._set_lengths(np.asarray(lengths))

    @property
    def samples(self) -> int | None:
        """Samples of an epoch; None until they are counted."""
        return None if self.lengths is None else int(self.lengths.sum())

    @cached_property
    def names(self) -> str:
        """A digest of the names of all shards in order."""
        return _digest("\0".join(map(self.name, self.shards)).encode("utf-8", "surrogatepass"))

    def name(self, shard: S) -> str:
        """The name of a shard."""
        return str(self._name_of(shard))

    def load_counted(self, packed: str) -> None:
        """Set the lengths from :attr:`counted` in a checkpoint."""
        self._set_lengths(np.frombuffer(zlib.decompress(base64.b64decode(packed)), "<i8"))
        self.counted = packed

    def set_counted(self, lengths: Int64s) -> None:
        """Set lengths that the ranks have counted."""
        self._set_lengths(lengths)
        self.counted = base64.b64encode(zlib.compress(lengths.astype("<i8").tobytes())).decode("ascii")

    def _set_lengths(self, lengths: npt.NDArray[Any]) -> None:
        wrong = None
        if lengths.shape != (len(self.shards),):
            wrong = f"shape {lengths.shape}"
        elif not np.issubdtype(lengths.dtype, np.integer):
            wrong = f"type {lengths.dtype}"
        elif lengths.min() < 0:
            wrong = f"{lengths.min()} for shard {self.name(self.shards[int(lengths.argmin())])}"
        elif sum(lengths.tolist()) > MAX_LENGTH:
            wrong = f"{sum(lengths.tolist()):,} samples in total"
        if wrong is not None:
            raise ConfigError(
                "invalid lengths of shards",
                expected=f"the number of samples of each of {len(self.shards):,} shards",
                found=wrong,
            )
        self.lengths = lengths.astype(np.int64)
        self.lengths_digest = _digest(self.lengths.astype("<i8").tobytes())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- agreement between ranks ------------------------------------------------------------------------------------------


def agree_on_lengths(dataset: ShardedDataset[Any], ranks: Ranks) -> None:
    """Count missing lengths, and check that all ranks have the same shards (collective; once per data set).

    Each of R ranks counts every R-th shard. If one fails, all raise.
    """
    if dataset.agreed:
        return
    check_lanes(dataset, ranks.size)
    counted, failure = list[int](), None
    if dataset.lengths is None:
        try:
            counted = [_count(dataset, number) for number in range(ranks.rank, len(dataset.shards), ranks.size)]
        except Exception as error:  # raised after the collective call, in which the other ranks wait
            failure = error
    mine = {
        "number": len(dataset.shards),
        "names": dataset.names,
        "lengths": dataset.lengths_digest,
        "lanes": dataset.lanes,
        "counted": counted,
        "failed": None if failure is None else f"{type(failure).__name__}: {failure}",
    }
    of_ranks = ranks.gather(mine, "comparing the shards of a data set, and counting their samples")
    if failure is not None:
        raise failure
    _check_equal(of_ranks)
    for rank, other in enumerate(of_ranks):
        if other["failed"] is not None:
            raise RemoteRankError("a rank could not count samples", found=other["failed"], where=f"rank {rank}")
    if dataset.lengths is None:
        lengths = np.zeros(len(dataset.shards), np.int64)
        for rank, other in enumerate(of_ranks):
            lengths[rank :: ranks.size] = other["counted"]
        dataset.set_counted(lengths)
    dataset.agreed = True


def check_lanes(dataset: ShardedDataset[Any], ranks: int) -> None:
    """Raise if there are fewer lanes than ranks."""
    if dataset.lanes < ranks:
        raise ConfigError(
            "there are fewer lanes than ranks",
            expected=f"{ranks} lanes or more",
            found=str(dataset.lanes),
            todo="set ShardedDataset(..., lanes=) to the largest number of ranks the job will have",
        )


def _count(dataset: ShardedDataset[Any], number: int) -> int:
    shard = dataset.shards[number]
    try:
        return sum(1 for _ in dataset.open_shard(shard))
    except Exception as error:
        error.add_note(f"while counting the samples of shard {dataset.name(shard)}")
        raise


def _check_equal(of_ranks: list[dict[str, Any]]) -> None:
    texts = {
        "number": "numbers of shards",
        "names": "names of shards, or another order of them",
        "lengths": "lengths of shards",
        "lanes": "numbers of lanes",
    }
    for key, text in texts.items():
        others = [rank for rank, each in enumerate(of_ranks) if each[key] != of_ranks[0][key]]
        if others:
            raise RanksDisagreeError(
                f"ranks have different {text}",
                expected=f"{of_ranks[0][key]}, as on rank 0",
                found=str(of_ranks[others[0]][key]),
                where=f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others[:8]))}",
                todo="sort the result of glob(); use names that are the same on all nodes (`name_of`)",
            )


# --- the order of samples ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The lanes of one pass over the data."""

    order: Int64s  # int64[shards]: shard numbers in the order of the pass
    ends: Int64s  # int64[shards]: cumulative lengths in that order
    count: int  # of lanes

    @classmethod
    def of(cls, lengths: Int64s, count: int, order: Int64s) -> Lanes:
        """Divide shards into at most ``count`` lanes."""
        return cls(order, np.cumsum(lengths[order]), min(count, len(lengths)))

    def locate(self, first: int, end: int, start: int = 0, count: int | None = None) -> list[tuple[int, int, int]]:
        """Samples ``start`` to ``start + count``, in order of lanes, of the step at positions [first, end).

        Returns:
            of each its lane, shard number and offset in the shard.
        """
        positions = np.arange(first, end)
        chosen = np.argsort(positions % self.count, kind="stable")[start : None if count is None else start + count]
        lanes, depths = positions[chosen] % self.count, positions[chosen] // self.count
        each, more = divmod(int(self.ends[-1]), self.count)
        in_sequence = lanes * each + np.minimum(lanes, more) + depths
        at = np.searchsorted(self.ends, in_sequence, side="right")
        starts = np.where(at > 0, self.ends[at - 1], 0)
        return list(zip(lanes.tolist(), self.order[at].tolist(), (in_sequence - starts).tolist(), strict=True))


# --- reading ----------------------------------------------------------------------------------------------------------


class SampleIndex(NamedTuple):
    """The index of a sample that data loader workers get: its lane, shard, offset and the shard's length."""

    lane: int
    number: int
    shard: Any
    offset: int
    length: int


class ShardReader(Dataset[Any]):
    """Reads samples by :class:`SampleIndex`, sequentially in each lane.

    Open shards are per process: a forked child and a pickled copy begin with none.
    """

    def __init__(self, dataset: ShardedDataset[Any]) -> None:
        self._dataset = dataset
        self._lanes: dict[int, _OpenShard] = {}
        self._of_parent: list[dict[int, _OpenShard]] = []
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """The state without open shards."""
        return vars(self) | {"_lanes": {}, "_of_parent": []}

    def __getitems__(self, wanted: list[SampleIndex]) -> list[Any]:
        """A batch of samples, as DataLoader asks for it."""
        return [self[each] for each in wanted]

    def __getitem__(self, wanted: SampleIndex) -> Any:
        """Read a sample."""
        if os.getpid() != self._process:
            self._of_parent.append(self._lanes)  # keep references: finalizers are for the parent to run
            self._lanes, self._process = {}, os.getpid()
        shard = self._lanes.get(wanted.lane)
        if shard is None or shard.number != wanted.number or shard.next > wanted.offset:
            self._close(wanted.lane)
        try:
            return self._read(wanted)
        except Exception as error:
            self._close(wanted.lane)
            if not isinstance(error, ConfigError):
                error.add_note(f"while reading sample {wanted.offset:,} of shard {self._dataset.name(wanted.shard)}")
            raise

    def close(self) -> None:
        """Close the shards that this process has open."""
        if os.getpid() == self._process:
            for lane in list(self._lanes):
                self._close(lane)

    def _read(self, wanted: SampleIndex) -> Any:
        shard = self._lanes.get(wanted.lane)
        if shard is None:
            shard = self._lanes[wanted.lane] = self._open(wanted)
        while True:
            sample = next(shard.samples, _END)
            if sample is _END:
                raise self._wrong_length(wanted, f"{shard.next:,}")
            shard.next += 1
            if shard.next > wanted.offset:
                break
        if shard.next == wanted.length:
            if next(shard.samples, _END) is not _END:
                raise self._wrong_length(wanted, f"more than {wanted.length:,}")
            self._close(wanted.lane)
        return sample

    def _open(self, wanted: SampleIndex) -> _OpenShard:
        if wanted.offset and self._dataset.open_at is not None:
            return _OpenShard(wanted.number, wanted.offset, iter(self._dataset.open_at(wanted.shard, wanted.offset)))
        return _OpenShard(wanted.number, 0, iter(self._dataset.open_shard(wanted.shard)))

    def _close(self, lane: int) -> None:
        shard = self._lanes.pop(lane, None)
        if shard is not None and (close := getattr(shard.samples, "close", None)) is not None:
            close()  # a generator closes its files now and not when it is collected

    def _wrong_length(self, wanted: SampleIndex, found: str) -> ConfigError:
        return ConfigError(
            "a shard has another length than given or counted",
            expected=f"{wanted.length:,} samples",
            found=found,
            where=f"shard {self._dataset.name(wanted.shard)}",
            todo="check that the file is complete; or correct the lengths and call `loader.start_over(epoch)`",
        )


@dataclass(slots=True)
class _OpenShard:
    number: int
    next: int  # offset of the next sample
    samples: Iterator[Any]
