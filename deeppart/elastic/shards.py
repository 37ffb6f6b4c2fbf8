"""A data set that is a list of shards, each read from its beginning: files of text, tar archives, parquet files."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.errors import ConfigError

from .permutation import MOST_PLACES, Int64s

#: What a shard is known by: a path, a URL, a (file, row group).
S = TypeVar("S")
#: By default. So many shards are open at a time, all ranks together.
LANES = 64


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
        lengths: samples of each shard; one that is said to have none is never opened. Without, ranks count them once,
            together, by reading everything; checkpoints have what they have found.
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
        if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
            raise ConfigError("impossible value for lanes", expected="an integer >= 1", found=repr(lanes))
        self.shards = shards
        self.open_shard = open_shard
        self.open_at = open_at
        self.lanes = lanes
        self._name_of = name_of
        self._names: str | None = None
        self._lengths: Int64s | None = None
        self._digest: str | None = None
        self._counted: str | None = None
        #: True if ranks are known to have the same shards.
        self.agreed = False
        if lengths is not None:
            self._take(np.asarray(lengths))

    @property
    def lengths(self) -> Int64s | None:
        """Samples of each shard, int64[shards]; None as long as nobody has counted."""
        return self._lengths

    @property
    def samples(self) -> int | None:
        """Of an epoch; None as long as nobody has counted."""
        return None if self._lengths is None else int(self._lengths.sum())

    @property
    def names(self) -> str:
        """A digest of the names of all shards, in order."""
        if self._names is None:
            text = "\0".join(map(self.name, self.shards))
            self._names = _digest(text.encode("utf-8", "surrogatepass"))
        return self._names

    @property
    def lengths_digest(self) -> str | None:
        """Of the lengths; None as long as nobody has counted."""
        if self._digest is None and self._lengths is not None:
            self._digest = _digest(_bytes(self._lengths))
        return self._digest

    @property
    def counted(self) -> str | None:
        """The lengths, packed, if ranks have counted them: for checkpoints."""
        return self._counted

    def name(self, shard: S) -> str:
        """By what a shard is known."""
        return str(self._name_of(shard))

    def take_counted(self, packed: str) -> None:
        """Take lengths that ranks have counted before."""
        self._take(np.frombuffer(zlib.decompress(base64.b64decode(packed)), "<i8"))
        self._counted = packed

    def set_counted(self, lengths: Int64s) -> None:
        """Take lengths that ranks have counted now."""
        self._take(lengths)
        self._counted = base64.b64encode(zlib.compress(_bytes(lengths))).decode("ascii")

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
        self._lengths = lengths.astype(np.int64)


def _bytes(lengths: Int64s) -> bytes:
    """The same on every machine."""
    return lengths.astype("<i8").tobytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
