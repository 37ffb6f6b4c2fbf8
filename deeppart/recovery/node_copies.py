"""What another rank of this node has read and checked of parts, used where it lies: in a file that is in memory, or
whose pages that rank has locked in the page cache.

What a mate maps is what the reader has checked: the same file by device and inode, under the same running kernel, kept
open by the reader until every rank has used it. Where any of that cannot be shown, the bytes are sent.

Invariant
---------
* All ranks know of what each rank has read of each part whether its node has it this way, or its bytes are sent to
  everyone there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError, StorageError
from deeppart.nodes.exchange.memory import Bytes
from deeppart.part import FileSource, check_encoded
from deeppart.recovery.load_part import Chosen, FilePlace, LoadedPart, Problem, problem_of
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.storage.mapped import bring_pages, running_kernel

#: Number of a part, and a rank that has read some of it, or all.
Holding = tuple[int, int]


class Place(NamedTuple):
    """Where what one rank has read of a part lies, if the ranks of its node can use it there.

    Attributes:
        text: as of :func:`described`.
        raw_start: where it begins in the raw bytes of the part.
        chunks: rows of CHUNK_DTYPE.
        read: of each, whether it was read and checked; None: all were.
    """

    text: str
    raw_start: int
    chunks: npt.NDArray[np.void]
    read: Chosen | None = None


@dataclass(frozen=True, slots=True)
class NodeCopy:
    """A part, or a stretch of one, in the memory of this node.

    Attributes:
        raw: its raw bytes, read-only.
        file: the file that this is, open.
        first: where they begin in it.
        is_on_a_node: other jobs on this node may take the file away.
        chunks: rows of CHUNK_DTYPE; it is stored raw, so they lie in the raw bytes one after the other.
        raw_start: where the raw bytes begin in those of the whole part.
        read: of each of the chunks, whether it was read and checked; None: all were.
    """

    raw: Bytes
    file: FileSource
    first: int
    is_on_a_node: bool
    chunks: npt.NDArray[np.void]
    raw_start: int = 0
    read: Chosen | None = None

    def problem(self) -> Problem:
        """To be asked when the bytes have been used: whether they may have changed, as of :class:`LoadedPart`."""
        return problem_of(self.file, self._changed) if self.is_on_a_node else None

    def _changed(self) -> Problem:
        at = 0
        try:
            for number, row in enumerate(self.chunks):
                start, at = at, at + int(row["encoded_length"])
                if self.read is not None and not self.read[number]:
                    continue
                stretch = self.stretch(self.raw_start + start, self.raw_start + at)
                check_encoded(row, stretch.data, f"{self.file.path}, chunk {number}")
        except (CorruptFileError, StorageError) as error:
            return error
        return None

    def stretch(self, start: int, stop: int) -> Bytes:
        """Some of the bytes of the part that are here, brought into this process."""
        piece = self.raw[start - self.raw_start : stop - self.raw_start]
        bring_pages(piece, self.file.path)
        return piece

    def read_into(self, start: int, target: Bytes) -> None:
        """Fill memory with bytes of the part that are here, from ``start``.

        The kernel copies them from the same memory, and no page of it has to be put in place in this process: of a
        tmpfs, whose pages are small, this takes three quarters of the time (docs/benchmarks.md).
        """
        self.file.read_into(self.first + start - self.raw_start, target.data)


@dataclass(frozen=True, slots=True)
class NodeCopies:
    """What the ranks of a node need not be sent.

    Attributes:
        mine: where this rank finds what its mates have read.
        on_nodes: what every rank of the reader's node finds there.
    """

    mine: dict[Holding, NodeCopy]
    on_nodes: frozenset[Holding]

    def close(self) -> None:
        """Close the files, and let go of what is mapped of them."""
        for copy in self.mine.values():
            copy.file.close()
        self.mine.clear()


def find_copies(ranks: Ranks, recovered: Recovered, places: Mapping[Holding, Place]) -> NodeCopies:
    """Map what the mates of this rank have read (collective)."""
    node_of, mine = ranks.node_of, dict[Holding, NodeCopy]()
    holdings = [(read.part, reader) for read in recovered.reads for reader in read.readers]
    lacking = np.array([each not in places for each in holdings], dtype=np.int64)
    try:
        for number, holding in enumerate(holdings):
            reader = holding[1]
            is_mates = node_of[reader] == node_of[ranks.rank] and reader != ranks.rank
            if is_mates and not lacking[number]:
                try:
                    mine[holding] = _mapped(places[holding])
                except Exception:  # of whatever kind: the bytes are sent then
                    lacking[number] = 1
        what = f"restore of step {recovered.attempt.step}, parts in the memory of nodes"
        lacking = ranks.finish(ranks.comm.maximum(lacking), what)
    except BaseException:
        NodeCopies(mine, frozenset()).close()
        raise
    found = frozenset(each for each, lacks in zip(holdings, lacking.tolist(), strict=True) if not lacks)
    for holding in mine.keys() - found:
        mine.pop(holding).file.close()
    return NodeCopies(mine, found)


def described(part: LoadedPart) -> str:
    """Where a part lies, for other ranks of the node; "" if they cannot use it there."""
    kernel = running_kernel()
    return "" if part.place is None or not kernel else json.dumps([kernel, *astuple(part.place)])


def _mapped(of: Place) -> NodeCopy:
    kernel, *values = json.loads(of.text)
    place = FilePlace(*values)
    if kernel != running_kernel():
        raise StorageError("a rank of the same node runs under another kernel", where=place.path)
    file = FileSource(place.path)
    try:
        if file.identity != (place.device, place.inode, place.offset):
            raise StorageError("a file is not the one that a rank of the same node has read", where=place.path)
        raw = np.frombuffer(file.viewed(), dtype=np.uint8)[place.first : place.first + place.raw_bytes]
        if len(raw) != place.raw_bytes:
            raise StorageError("a file has become shorter since it was read", where=place.path)
        return NodeCopy(raw, file, place.first, place.is_on_a_node, of.chunks, of.raw_start, of.read)
    except BaseException:
        file.close()
        raise
