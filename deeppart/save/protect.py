"""One rank's work on a checkpoint's copies and parity on other nodes.

It uses the parts stored at the local level, so it runs after that level is complete on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from deeppart import access
from deeppart.comm import Comm, Operation
from deeppart.model import Attempt, Level
from deeppart.nodes import Arena, PartFile, Protection, begin_together, encode_sets, exchange_copies
from deeppart.part import PartSummary
from deeppart.storage import DurableFile, NodeLevel, RateLimit

#: Drives an operation to its end, on the thread that the MPI library requires.
Drive = Callable[[Operation[list[DurableFile]]], list[DurableFile]]


class Protector:
    """Stores the redundant levels of one rank."""

    def __init__(
        self, rank: int, protection: Protection, node_levels: Mapping[str, NodeLevel], limit: RateLimit | None
    ) -> None:
        self._rank, self._levels, self._limit = rank, node_levels, limit
        self._copies = [copy for copy in protection.copies if rank in (copy.source, copy.target)]
        self._sets = [each for each in protection.sets if any(member.rank == rank for member in each.members)]
        self._arena = Arena()

    def protect(self, attempt: Attempt, summary: PartSummary, level: str, comm: Comm, drive: Drive) -> list[Path]:
        """Do this rank's part of a redundant level; returns the files that it stored, durable and named."""
        begin = partial(self._copy if level == Level.PARTNER else self._encode, comm, attempt, summary)
        files: list[DurableFile] = []
        named: list[Path] = []
        try:
            files = drive(begin_together(comm, begin))
            for file in files:
                file.commit()
                named.append(file.path)
        except BaseException:
            for file in files:
                file.abort()
            remove_files(named)
            raise
        return named

    def _copy(self, comm: Comm, attempt: Attempt, summary: PartSummary) -> Operation[list[DurableFile]]:
        opened = partial(self._levels[Level.PARTNER].open_part, attempt)
        own = {self._rank: self._own(attempt, summary)}
        return exchange_copies(comm, self._copies, own, opened, self._arena, self._limit)

    def _encode(self, comm: Comm, attempt: Attempt, summary: PartSummary) -> Operation[list[DurableFile]]:
        own = self._own(attempt, summary)
        sets = [
            (each, own if each.members[each.place_of(self._rank)].part == self._rank else None) for each in self._sets
        ]
        return encode_sets(comm, sets, attempt, self._levels[Level.PARITY].open_parity, self._arena, self._limit)

    def _own(self, attempt: Attempt, summary: PartSummary) -> PartFile:
        path = self._levels[Level.LOCAL].part_path(attempt, self._rank)
        return PartFile(path, summary.nbytes, summary.index_digest, summary.digest)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files again, as far as possible."""
    for path in paths:
        with contextlib.suppress(OSError):
            access.remove(path)
