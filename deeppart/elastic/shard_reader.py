"""Samples out of shards: each lane has one open, and goes on in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from deeppart.errors import ConfigError

_END = object()


class Wanted(NamedTuple):
    """A sample that is to be read: the index that data loader workers are given.

    Attributes:
        lane: by which it is read.
        number: of the shard, in the list of all.
        shard: as the user has given it.
        offset: of the sample in the shard.
        length: samples that the shard is said to have.
    """

    lane: int
    number: int
    shard: Any
    offset: int
    length: int


@dataclass(slots=True)
class _Open:
    """A shard that a lane is in.

    Attributes:
        next: the offset of the sample that comes next.
    """

    number: int
    next: int
    samples: Iterator[Any]


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
        self._lanes: dict[int, _Open] = {}
        self._of_parent: list[dict[int, _Open]] = []
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open."""
        return vars(self) | {"_lanes": {}, "_of_parent": []}

    def __getitems__(self, wanted: list[Wanted]) -> list[Any]:
        """As DataLoader asks for a batch."""
        return [self[each] for each in wanted]

    def __getitem__(self, wanted: Wanted) -> Any:
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

    def _read(self, wanted: Wanted) -> Any:
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

    def _opened(self, wanted: Wanted) -> _Open:
        if wanted.offset and self._open_at is not None:
            return _Open(wanted.number, wanted.offset, iter(self._open_at(wanted.shard, wanted.offset)))
        return _Open(wanted.number, 0, iter(self._open_shard(wanted.shard)))

    def _close(self, lane: int) -> None:
        at = self._lanes.pop(lane, None)
        if at is not None and (close := getattr(at.samples, "close", None)) is not None:
            close()  # of a generator: what it has open is closed now

    def _wrong(self, wanted: Wanted, found: str) -> ConfigError:
        return ConfigError(
            "a shard has another length than was said, or than was counted",
            expected=f"{wanted.length:,} samples",
            found=found,
            where=f"shard {self._name(wanted.shard)}",
            todo="look whether the file is whole; give lengths anew, and begin with `loader.start_over(epoch)`",
        )
