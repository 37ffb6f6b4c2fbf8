"""Sections: the parts of a node's ranks, written into one file on the persistent level (``files="node"``).

Two exchanges, on the channel of the level, hold it together. In the first, every rank says how much room its part may
need, and the lowest rank of each node which file it has made; from that, each rank knows where its section lies. In the
second, every rank says how long its part has become; then the lowest rank of each node completes the file. The commit
round of the level follows, as for files of their own. All ranks exchange, not those of each node alone: so nobody
writes anything of a step that has failed elsewhere, and who is missing is known by name.

Invariants
----------
* Every rank takes part in the exchanges, whatever has gone wrong on it; what it says is then what was wrong, and all
  ranks give the level up after that exchange.
* When a file gets its name, no rank but the lowest has it open for writing: the others have left it before they spoke.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from deeppart import access
from deeppart.comm import Comm, Driver, rank_names
from deeppart.errors import DeeppartError, RemoteRankError, as_error
from deeppart.model import Attempt
from deeppart.part import SECTION_ALIGNMENT, NodeTable, Section, most_part_bytes
from deeppart.save.job import Job, Opened, Written
from deeppart.save.write import RankStorage, ShareWriter
from deeppart.storage.files import DurableFile, Room, complete

T = TypeVar("T")
#: How a message begins that says what went wrong; others are JSON.
_FAILED = b"!"
_MOST_TOLD_CHARS = 2000


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a rank tells before it writes.

    Attributes:
        room_bytes: that its part may need.
        file: of the node, which this rank has made; None if it is not the lowest.
    """

    room_bytes: int
    file: DurableFile | None

    def message(self) -> bytes:
        file = [] if self.file is None else [self.file.temporary.name, self.file.inode]
        return json.dumps([self.room_bytes, *file]).encode()


class SectionWriter:
    """Writes one rank's parts into the files of its node. Used by one thread."""

    def __init__(self, writer: ShareWriter, storage: RankStorage, channel: Comm, driver: Driver) -> None:
        self._writer, self._storage, self._channel, self._driver = writer, storage, channel, driver
        self._mates = storage.persistent.mates
        #: The checkpoint whose exchanges are over, successful or not.
        self._over: Attempt | None = None

    def write(self, job: Job, opened: Opened) -> Written:
        """Write this rank's part into its section; the lowest rank of the node completes the file (collective)."""
        try:
            with ExitStack() as undo:
                written = self._write(job, opened, undo)
                undo.pop_all()
                return written
        except Exception as error:
            self.give_up(job, as_error(error, "the part could not be written"))
            raise

    def give_up(self, job: Job, failure: DeeppartError) -> None:
        """Tell the other ranks, if they still wait for this one in an exchange: it ends there for all."""
        if self._over != job.attempt:
            with contextlib.suppress(DeeppartError):
                self._exchange(job, failure, "giving up")

    def _write(self, job: Job, opened: Opened, undo: ExitStack) -> Written:
        """What is to be undone if it fails, at whatever point, is left to ``undo``."""
        begun = _attempted(lambda: self._begin(job, opened))
        if isinstance(begun, _Begun) and begun.file is not None:
            undo.callback(begun.file.abort)
        rooms = self._exchange(job, begun if isinstance(begun, DeeppartError) else begun.message(), "room for sections")
        written = _attempted(lambda: self._fill(job, opened, rooms, undo))
        said = written if isinstance(written, DeeppartError) else _lengths(written)
        lengths = self._exchange(job, said, "completing node files", is_last=True)
        assert isinstance(begun, _Begun) and isinstance(written, Written)
        if begun.file is not None:
            complete(begun.file, self._table(job.attempt, rooms, lengths))
        return written

    def _begin(self, job: Job, opened: Opened) -> _Begun:
        if opened.failure is not None:
            raise opened.failure
        (layout, document), persistent = job.description(), self._storage.persistent
        tables = len(layout.chunks), len(layout.spans), len(document.meta())
        room_bytes = most_part_bytes(layout.nbytes, *tables, signed=persistent.signing is not None)
        if self._storage.rank != self._mates[0]:
            return _Begun(room_bytes, None)
        return _Begun(room_bytes, self._writer.tried_again(job, lambda: persistent.open_node_file(job.attempt)))

    def _fill(self, job: Job, opened: Opened, rooms: list[bytes], undo: ExitStack) -> Written:
        persistent, rank = self._storage.persistent, self._storage.rank
        room = self._room(job.attempt, rooms)
        undo.callback(_remove, room.temporary)  # its maker may be gone
        return self._writer.write_persistent(job, opened, lambda: persistent.open_section(job.attempt, rank, room))

    def _room(self, attempt: Attempt, rooms: list[bytes]) -> Room:
        """The place of this rank's section, behind those of lower ranks of its node."""
        sizes, offsets = self._places(rooms)
        _, name, inode = json.loads(rooms[self._mates[0]])
        at = self._mates.index(self._storage.rank)
        directory = self._storage.persistent.part_path(attempt, self._storage.rank).parent.parent
        return Room(directory / name, inode, offsets[at], sizes[at])

    def _places(self, rooms: list[bytes]) -> tuple[list[int], list[int]]:
        """Room and offset of the sections of this node."""
        needed = [int(json.loads(rooms[mate])[0]) for mate in self._mates]
        sizes = [-(-each // SECTION_ALIGNMENT) * SECTION_ALIGNMENT for each in needed]
        return sizes, [0, *accumulate(sizes[:-1])]

    def _table(self, attempt: Attempt, rooms: list[bytes], lengths: list[bytes]) -> NodeTable:
        _, offsets = self._places(rooms)
        told = [json.loads(lengths[mate]) for mate in self._mates]
        sections = (
            Section(mate, offset, nbytes, index_digest)
            for mate, offset, (nbytes, index_digest) in zip(self._mates, offsets, told, strict=True)
        )
        return NodeTable(self._mates[0], attempt.world_size, tuple(sections))

    def _exchange(self, job: Job, said: bytes | DeeppartError, what: str, *, is_last: bool = False) -> list[bytes]:
        """Tell all ranks, and hear from all (collective)."""
        if isinstance(said, DeeppartError):
            message = _FAILED + str(said)[:_MOST_TOLD_CHARS].encode(errors="replace")
        else:
            message = said
        over, self._over = self._over, job.attempt  # if it is cut off, it cannot go on
        told: list[bytes] = self._driver.drive(
            self._channel, self._channel.allgather(message), f"step {job.attempt.step}, {what}"
        )
        failed = [rank for rank, text in enumerate(told) if text.startswith(_FAILED)]
        if isinstance(said, DeeppartError):
            raise said
        if failed:
            found = told[failed[0]].removeprefix(_FAILED).decode(errors="replace")
            raise RemoteRankError(f"step {job.attempt.step}: {rank_names(failed)} failed", found=found)
        if not is_last:
            self._over = over
        return told


def _attempted(work: Callable[[], T]) -> T | DeeppartError:
    """What went wrong instead of the result: the other ranks wait to hear of it."""
    try:
        return work()
    except Exception as error:
        return as_error(error, "the part could not be written")


def _lengths(written: Written) -> bytes:
    return json.dumps([written.summary.nbytes, written.summary.index_digest]).encode()


def _remove(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        access.remove(temporary)
