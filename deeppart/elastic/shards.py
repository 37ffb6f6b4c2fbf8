"""A data set that is a list of shards, each read from its beginning: files of text, tar archives, parquet files.

The samples of an epoch are laid in a line: shard after shard, in the epoch's order of shards. The line is cut into
*lanes*, whose lengths differ by one at most, and places take a sample of each lane in turn. So a step has samples of
many shards, and each lane is read from its beginning to its end. The number of lanes is one of the order's, as the seed
is; it is not the number of ranks (MosaicML's Streaming calls the same *canonical nodes*).

Which samples a step has follows from its places. Within the step they are handed out lane by lane: a rank, which has a
run of them, reads a few lanes, the same ones in each step if steps are multiples of the lanes. Two ranks share a lane
at most where their runs meet.
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

from .permutation import MOST_PLACES, Int64s
from .ranks import Ranks

#: What a shard is known by: a path, a URL, a (file, row group).
S = TypeVar("S")
#: By default. So many shards are open at a time, all ranks together.
LANES = 64
#: Of the way in which shards are laid into lanes. Checkpoints name it: another one would give samples twice.
VERSION = 1
_END = object()


class ShardedDataset(Generic[S]):
    r"""Shards, and how the samples of one are read: for :class:`deeppart.elastic.ElasticDataLoader`.

    In each epoch the loader has the shards in a new order, and reads ``lanes`` of them at a time, all ranks together; a
    step has a sample of each lane in turn. Every rank reads the lanes of its own samples. Within a shard the order
    stays; so write shards in a random order, where that matters.

    What a rank is not given is read and skipped, where it has to read up to a sample. So let ``open_shard`` give
    samples as they are stored, and decode them in the loader's ``collate_fn``, which is called for the rank's own
    samples alone; or give ``open_at``, if the format has an index.

    Args:
        shards: paths, URLs..., the same ones in the same order on every rank.
        open_shard: the samples of a shard, always in the same order.
        lengths: samples of each shard; one that is said to have none is never opened. Without, ranks count them
            together once, by reading everything; checkpoints have what they have found.
        open_at: the samples of a shard from the n-th one on, where a reader can go there without reading the others.
        lanes: shards that are read at a time; as many as ranks, at least. It belongs to the order of samples: keep it
            when the number of ranks changes. Another one holds from the next pass on.
        name_of: by what a shard is known, a text; checkpoints have a digest of the names. ``os.path.basename`` where
            directories may move.

    Raises:
        ConfigError: there are no shards; lengths or lanes are impossible.

    Example:
        >>> from deeppart.elastic import ElasticDataLoader, Progress, ShardedDataset
        >>> texts = {"a.txt": "1 2 3", "b.txt": "4 5", "c.txt": "6 7 8 9"}  # files, of which samples are words
        >>> data = ShardedDataset(list(texts), lambda name: map(int, texts[name].split()), lanes=2)
        >>> loader = ElasticDataLoader(data, batch_size=4, shuffle=False, progress=Progress())
        >>> [batch.tolist() for batch in loader]  # at each time, half of it from the first half of the data
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
                "the shards of a data set are not a list",
                expected="a list of names, in the same order on every rank",
                found=type(shards).__name__,
                todo="sorted(...) makes one of what glob() finds",
            )
        if not len(shards):
            raise ConfigError("a data set has no shards", todo="look at the pattern or the list that names them")
        check_count("lanes", lanes, "lanes")
        self.shards = shards
        self.open_shard = open_shard
        self.open_at = open_at
        self.lanes = lanes
        self._name_of = name_of
        #: Samples of each shard, int64[shards]; None until they are counted.
        self.lengths: Int64s | None = None
        #: Of the lengths; None until they are counted.
        self.lengths_digest: str | None = None
        #: The lengths, packed, if ranks have counted them: for checkpoints.
        self.counted: str | None = None
        #: True if ranks are known to have the same shards.
        self.agreed = False
        if lengths is not None:
            self._take(np.asarray(lengths))

    @property
    def samples(self) -> int | None:
        """Of an epoch; None until they are counted."""
        return None if self.lengths is None else int(self.lengths.sum())

    @cached_property
    def names(self) -> str:
        """A digest of the names of all shards, in order."""
        return _digest("\0".join(map(self.name, self.shards)).encode("utf-8", "surrogatepass"))

    def name(self, shard: S) -> str:
        """By what a shard is known."""
        return str(self._name_of(shard))

    def take_counted(self, packed: str) -> None:
        """Take lengths that ranks have counted before."""
        self._take(np.frombuffer(zlib.decompress(base64.b64decode(packed)), "<i8"))
        self.counted = packed

    def set_counted(self, lengths: Int64s) -> None:
        """Take lengths that ranks have counted now."""
        self._take(lengths)
        self.counted = base64.b64encode(zlib.compress(_bytes(lengths))).decode("ascii")

    def _take(self, lengths: npt.NDArray[Any]) -> None:
        wrong = None
        if lengths.shape != (len(self.shards),):
            wrong = f"of shape {lengths.shape}"
        elif not np.issubdtype(lengths.dtype, np.integer):
            wrong = f"of type {lengths.dtype}"
        elif lengths.min() < 0:
            wrong = f"{lengths.min()} for shard {self.name(self.shards[int(lengths.argmin())])}"
        elif sum(lengths.tolist()) > MOST_PLACES:
            wrong = f"{sum(lengths.tolist()):,} samples together"
        if wrong is not None:
            raise ConfigError(
                "impossible lengths of shards",
                expected=f"for each of {len(self.shards):,} shards the number of its samples",
                found=wrong,
            )
        self.lengths = lengths.astype(np.int64)
        self.lengths_digest = _digest(_bytes(self.lengths))


def _bytes(lengths: Int64s) -> bytes:
    """The same on every machine."""
    return lengths.astype("<i8").tobytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- the same shards on all ranks, and their lengths ------------------------------------------------------------------


def agree_on_lengths(dataset: ShardedDataset[Any], ranks: Ranks) -> None:
    """Once for a data set (collective): afterwards its lengths are known, and the same on all ranks.

    Each of R ranks counts every R-th shard. All of them raise if one does.
    """
    if dataset.agreed:
        return
    check_lanes(dataset, ranks.size)
    own, counted, failure = range(ranks.rank, len(dataset.shards), ranks.size), list[int](), None
    if dataset.lengths is None:
        try:
            counted = [_count(dataset, number) for number in own]
        except Exception as error:  # the other ranks wait for this one
            failure = error
    mine = _said(dataset) | {
        "counted": counted,
        "failed": None if failure is None else f"{type(failure).__name__}: {failure}",
    }
    everybody = ranks.gather(mine, "comparing the shards of a data set, and counting their samples")
    if failure is not None:
        raise failure
    _compare(everybody)
    for rank, other in enumerate(everybody):
        if other["failed"] is not None:
            raise RemoteRankError("a rank could not count samples", found=other["failed"], where=f"rank {rank}")
    if dataset.lengths is None:
        lengths = np.zeros(len(dataset.shards), np.int64)
        for rank, other in enumerate(everybody):
            lengths[rank :: ranks.size] = other["counted"]
        dataset.set_counted(lengths)
    dataset.agreed = True


def check_lanes(dataset: ShardedDataset[Any], ranks: int) -> None:
    """Refuse fewer lanes than ranks."""
    if dataset.lanes < ranks:
        raise ConfigError(
            "there are fewer lanes than ranks",
            expected=f"{ranks} lanes or more",
            found=str(dataset.lanes),
            todo="give ShardedDataset(..., lanes=) as many as the job will ever have ranks; it holds from the next pass"
            " on",
        )


def _count(dataset: ShardedDataset[Any], number: int) -> int:
    shard = dataset.shards[number]
    try:
        return sum(1 for _ in dataset.open_shard(shard))
    except Exception as error:
        error.add_note(f"while the samples of shard {dataset.name(shard)} were counted")
        raise


def _said(dataset: ShardedDataset[Any]) -> dict[str, Any]:
    return {
        "number": len(dataset.shards),
        "names": dataset.names,
        "lengths": dataset.lengths_digest,
        "lanes": dataset.lanes,
    }


def _compare(everybody: list[dict[str, Any]]) -> None:
    texts = {
        "number": "numbers of shards",
        "names": "names of shards, or another order of them",
        "lengths": "lengths of shards",
        "lanes": "numbers of lanes",
    }
    for key, text in texts.items():
        others = [rank for rank, each in enumerate(everybody) if each[key] != everybody[0][key]]
        if others:
            raise RanksDisagreeError(
                f"ranks were given different {text}",
                expected=f"{everybody[0][key]}, as on rank 0",
                found=str(everybody[others[0]][key]),
                where=f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others[:8]))}",
                todo="sort what glob() finds; give names that are the same on all nodes (`name_of`)",
            )


# --- which sample of which shard has a place in an epoch's order -----------------------------------------------------


class SampleLocation(NamedTuple):
    """Where a sample is: the lane by which it is read, the number of its shard, its offset there."""

    lane: int
    shard: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The lanes of one pass over the data."""

    order: Int64s  # int64[shards]: numbers of the shards, in the order of the pass
    ends: Int64s  # int64[shards]: samples up to the end of each of these
    count: int  # of lanes

    def spots(self, first: int, end: int, start: int = 0, count: int | None = None) -> list[SampleLocation]:
        """Samples of a step that has the places from ``first`` to ``end``, exclusively."""
        places = np.arange(first, end)
        chosen = np.argsort(places % self.count, kind="stable")[start : None if count is None else start + count]
        lanes, depths = places[chosen] % self.count, places[chosen] // self.count
        each, more = divmod(int(self.ends[-1]), self.count)
        on_line = lanes * each + np.minimum(lanes, more) + depths
        at = np.searchsorted(self.ends, on_line, side="right")
        starts = np.where(at > 0, self.ends[at - 1], 0)
        return [
            SampleLocation(*found)
            for found in zip(lanes.tolist(), self.order[at].tolist(), (on_line - starts).tolist(), strict=True)
        ]


def lay_lanes(lengths: Int64s, count: int, order: Int64s) -> Lanes:
    """Lay shards into lanes."""
    return Lanes(order, np.cumsum(lengths[order]), min(count, len(lengths)))


# --- samples out of shards --------------------------------------------------------------------------------------------


class SampleIndex(NamedTuple):
    """A sample that is to be read, of a shard with so many: the index that data loader workers are given."""

    lane: int
    number: int
    shard: Any
    offset: int
    length: int


class ShardReader(Dataset[Any]):
    """Reads what it is asked for; it goes on where the lane is, if that is before it in the same shard.

    Each process has its own: children that are forked share no open file, and copies have none open.
    """

    def __init__(
        self,
        open_shard: Callable[[Any], Iterable[Any]],
        open_at: Callable[[Any, int], Iterable[Any]] | None,
        name: Callable[[Any], str],
    ) -> None:
        self._open_shard, self._open_at, self._name = open_shard, open_at, name
        self._lanes: dict[int, _OpenShard] = {}
        self._of_parent: list[dict[int, _OpenShard]] = []
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open."""
        return vars(self) | {"_lanes": {}, "_of_parent": []}

    def __getitems__(self, wanted: list[SampleIndex]) -> list[Any]:
        """As DataLoader asks for a batch."""
        return [self[each] for each in wanted]

    def __getitem__(self, wanted: SampleIndex) -> Any:
        """A sample."""
        if os.getpid() != self._process:
            self._of_parent.append(self._lanes)  # what is done at their end is the parent's to do
            self._lanes, self._process = {}, os.getpid()
        at = self._lanes.get(wanted.lane)
        if at is None or at.number != wanted.number or at.next > wanted.offset:
            self._close(wanted.lane)
        try:
            return self._read(wanted)
        except Exception as error:
            self._close(wanted.lane)
            if not isinstance(error, ConfigError):
                error.add_note(f"while shard {self._name(wanted.shard)} was read, for its sample {wanted.offset:,}")
            raise

    def close(self) -> None:
        """Close what this process has open."""
        if os.getpid() == self._process:
            for lane in list(self._lanes):
                self._close(lane)

    def _read(self, wanted: SampleIndex) -> Any:
        at = self._lanes.get(wanted.lane)
        if at is None:
            at = self._lanes[wanted.lane] = self._opened(wanted)
        while True:
            sample = next(at.samples, _END)
            if sample is _END:
                raise self._wrong(wanted, f"{at.next:,}")
            at.next += 1
            if at.next > wanted.offset:
                break
        if at.next == wanted.length:
            if next(at.samples, _END) is not _END:
                raise self._wrong(wanted, f"more than {wanted.length:,}")
            self._close(wanted.lane)
        return sample

    def _opened(self, wanted: SampleIndex) -> _OpenShard:
        if wanted.offset and self._open_at is not None:
            return _OpenShard(wanted.number, wanted.offset, iter(self._open_at(wanted.shard, wanted.offset)))
        return _OpenShard(wanted.number, 0, iter(self._open_shard(wanted.shard)))

    def _close(self, lane: int) -> None:
        at = self._lanes.pop(lane, None)
        if at is not None and (close := getattr(at.samples, "close", None)) is not None:
            close()  # of a generator: what it has open is closed now

    def _wrong(self, wanted: SampleIndex, found: str) -> ConfigError:
        return ConfigError(
            "a shard has another length than was said, or than was counted",
            expected=f"{wanted.length:,} samples",
            found=found,
            where=f"shard {self._name(wanted.shard)}",
            todo="look whether the file is whole; give lengths anew, and begin with `loader.start_over(epoch)`",
        )


@dataclass(slots=True)
class _OpenShard:
    """A shard that a lane is in, and the offset of the sample that comes next."""

    number: int
    next: int
    samples: Iterator[Any]
