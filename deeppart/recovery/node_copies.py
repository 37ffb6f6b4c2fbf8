"""Parts that another rank of this node has read and checked, used where they lie: in a file that is in memory, or whose
pages that rank has locked in the page cache.

What a mate maps is what the reader has checked: the same file by device and inode, under the same running kernel, kept
open by the reader until every rank has used it. Where any of that cannot be shown, the bytes are sent.

Invariant
---------
* All ranks know of each part whether the reader's node has it this way, or its bytes are sent to everyone there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError, StorageError
from deeppart.nodes.exchange.memory import Bytes
from deeppart.part import FileSource, check_encoded
from deeppart.recovery.load_part import FilePlace, LoadedPart, Problem, problem_of
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.storage.locked_pages import bring_pages
from deeppart.storage.mapped import running_kernel


@dataclass(frozen=True, slots=True)
class NodeCopy:
    """A part in the memory of this node.

    Attributes:
        raw: its raw stream, read-only.
        file: the file that this is, open.
        first: where the raw stream begins in it.
        is_on_a_node: other jobs on this node may take the file away.
        chunks: rows of CHUNK_DTYPE; it is stored raw, so they lie in the raw stream one after the other.
    """

    raw: Bytes
    file: FileSource
    first: int
    is_on_a_node: bool
    chunks: npt.NDArray[np.void]

    def problem(self) -> Problem:
        """To be asked when the bytes have been used: whether they may have changed, as of :class:`LoadedPart`."""
        return problem_of(self.file, self._changed) if self.is_on_a_node else None

    def _changed(self) -> Problem:
        at = 0
        try:
            for number, row in enumerate(self.chunks):
                start, at = at, at + int(row["encoded_length"])
                check_encoded(row, self.stretch(start, at).data, f"{self.file.path}, chunk {number}")
        except (CorruptFileError, StorageError) as error:
            return error
        return None

    def stretch(self, start: int, stop: int) -> Bytes:
        """Some of its bytes, brought into this process.

        Raises:
            StorageError: they are not in memory any more, and cannot be read.
        """
        piece = self.raw[start:stop]
        bring_pages(piece, self.file.path)
        return piece

    def read_into(self, start: int, target: Bytes) -> None:
        """Fill memory with its bytes from ``start``.

        The kernel copies them from the same memory, and no page of it has to be put in place in this process: of a
        tmpfs, whose pages are small, this takes three quarters of the time (docs/benchmarks.md).

        Raises:
            StorageError, CorruptFileError: they are not in memory any more, and cannot be read.
        """
        self.file.read_into(self.first + start, target.data)


@dataclass(frozen=True, slots=True)
class NodeCopies:
    """The parts that the ranks of a node need not be sent.

    Attributes:
        mine: part number -> where this rank finds it, of those that a mate has read.
        on_nodes: numbers of the parts that every rank of the reader's node finds there.
    """

    mine: dict[int, NodeCopy]
    on_nodes: frozenset[int]

    def close(self) -> None:
        """Close the files, and let go of what is mapped of them."""
        for copy in self.mine.values():
            copy.file.close()
        self.mine.clear()


def find_copies(
    ranks: Ranks, recovered: Recovered, places: Mapping[int, str], chunks: Mapping[int, npt.NDArray[np.void]]
) -> NodeCopies:
    """Map what the mates of this rank have read (collective).

    Args:
        places: part number -> :func:`described`, of those for which that is not "".
        chunks: the table of chunks of each of these parts.
    """
    node_of, mine = ranks.node_of, dict[int, NodeCopy]()
    lacking = np.ones(recovered.attempt.world_size, dtype=np.int64)
    lacking[list(places)] = 0
    try:
        for read in recovered.reads:
            is_mates = node_of[read.reader] == node_of[ranks.rank] and read.reader != ranks.rank
            if is_mates and read.part in places:
                try:
                    mine[read.part] = _mapped(places[read.part], chunks[read.part])
                except Exception:  # of whatever kind: the bytes are sent then
                    lacking[read.part] = 1
        what = f"restore of step {recovered.attempt.step}, parts in the memory of nodes"
        lacking = ranks.finish(ranks.comm.maximum(lacking), what)
    except BaseException:
        NodeCopies(mine, frozenset()).close()
        raise
    found = frozenset(np.flatnonzero(lacking == 0).tolist())
    for part in mine.keys() - found:
        mine.pop(part).file.close()
    return NodeCopies(mine, found)


def described(part: LoadedPart) -> str:
    """Where a part lies, for other ranks of the node; "" if they cannot use it there."""
    kernel = running_kernel()
    return "" if part.place is None or not kernel else json.dumps([kernel, *astuple(part.place)])


def _mapped(text: str, chunks: npt.NDArray[np.void]) -> NodeCopy:
    kernel, *values = json.loads(text)
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
        return NodeCopy(raw, file, place.first, place.is_on_a_node, chunks)
    except BaseException:
        file.close()
        raise
