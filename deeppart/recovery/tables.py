"""The tables of all parts on every rank: the pieces of each chunk, its readers, and the structure document.

Everything small is sent in one exchange: with as many parts as ranks, one exchange for each would take longer than
sending the bytes.

Bytes that another rank of this node has read and checked are used in place: in a file in memory, or with pages that the
rank has locked in the page cache. A mate maps exactly what the reader has checked: the same file by device and inode,
under the same running kernel, kept open by the reader until every rank has used it. If any of this cannot be verified,
the bytes are sent; all ranks know for each part whether they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.comm import Comm, Operation, finish
from deeppart.errors import CorruptFileError, StorageError
from deeppart.mapped import bring_pages, running_kernel
from deeppart.nodes import Bytes
from deeppart.part import CHUNK_DTYPE, FLAG_PER_RANK, SPAN_DTYPE, FileSource, check_encoded
from deeppart.plan.restart import Read
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.parts import Chosen, FileRange, LoadedPart, Problem, problem_of
from deeppart.state.pieces import PartPieces

T = TypeVar("T")
#: Size of the field with the length of a message's head.
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a restore.

    Attributes:
        comm: the communicator.
        node_of: node number of each rank; nodes are numbered from 0 without gaps.
        timeout: seconds without progress after which an exchange ends in an error.
        threads: this rank's threads that copy from the memory of its node.
        at: converts a path in text form, relative to its base directory, to a path.
    """

    comm: Comm
    node_of: tuple[int, ...]
    timeout: float
    threads: int = 1
    at: Callable[[str], Path] = Path

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.rank

    def finish(self, operation: Operation[T], what: str) -> T:
        """Drive an operation to its end and return its result."""
        return finish(self.comm, operation, what, self.timeout)

    def share(self, head: Any, payload: Iterable[bytes], what: str) -> list[tuple[Any, bytes]]:
        """Send a JSON value, and bytes that it describes, to all ranks (collective); returns them by rank."""
        text = json.dumps(head).encode()
        message = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *payload))
        received = []
        for theirs in self.finish(self.comm.allgather(message), what):
            begins = _LENGTH_BYTES + int.from_bytes(theirs[:_LENGTH_BYTES], "little")
            received.append((json.loads(theirs[_LENGTH_BYTES:begins]), theirs[begins:]))
        return received


#: For a part: its number, the file range of its bytes in memory, which of the sender's chunks were read ("": all), and,
#: from the rank that sends them, rows of its two tables and bytes of its document.
_Head = tuple[int, str, str, int, int, int]
#: In place of a rank: no rank has read the chunk.
UNREAD = -1


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part, as every rank needs them.

    Attributes:
        part: number of the part: the rank that saved it.
        readers: for each chunk the rank that has it in memory; UNREAD if it is not needed.
        pieces: the pieces of each chunk, and where chunks begin.
        per_rank: for each chunk whether it has bytes of the saving rank alone.
    """

    part: int
    readers: npt.NDArray[np.int64]
    pieces: PartPieces
    per_rank: npt.NDArray[np.bool_]

    @property
    def is_unread(self) -> npt.NDArray[np.bool_]:
        """For each chunk whether no rank has read it."""
        return np.asarray(self.readers == UNREAD)

    def byte_range(self, chunk: int) -> tuple[int, int]:
        """Begin and end of a chunk in the raw stream, in bytes."""
        begin, end = self.pieces.raw_starts[chunk : chunk + 2].tolist()
        return begin, end


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of all parts, the same on all ranks except ``copies``.

    Attributes:
        indexes: in part order.
        document: the document of part 0.
        copies: bytes of parts in the memory of this node.
    """

    indexes: list[PartIndexView]
    document: bytes
    copies: NodeCopies

    @property
    def saved_bytes(self) -> int:
        """Raw bytes of all chunks."""
        return sum(int(index.pieces.raw_starts[-1]) for index in self.indexes)

    @property
    def loaded_bytes(self) -> int:
        """Raw bytes of the chunks that were read."""
        lengths = (np.diff(index.pieces.raw_starts)[~index.is_unread] for index in self.indexes)
        return sum(int(each.sum()) for each in lengths)


def share_tables(ranks: Ranks, recovered: Recovered) -> Tables:
    """Send the tables of all parts to every rank (collective)."""
    what = f"restore of step {recovered.attempt.step}, indexes of the parts"
    messages = ranks.share(*_message(recovered, ranks.rank), what)
    with collection_paused():
        indexes, places, document = _decomposed(messages, recovered.reads)
    return Tables(indexes, document, find_copies(ranks, recovered, places))


def _decomposed(
    messages: list[tuple[list[_Head], bytes]], reads: Sequence[Read]
) -> tuple[list[PartIndexView], dict[Holding, Place], bytes]:
    """The tables in part order; where bytes of parts are in memory; the document of part 0."""
    indexes: dict[int, PartIndexView] = {}
    shared: dict[int, dict[int, range]] = {}
    tables: dict[int, npt.NDArray[np.void]] = {}
    document = b""
    read = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, _, text, *_ in heads}
    for sender, (heads, message) in enumerate(messages):
        at = 0
        for part, _, _, chunk_count, span_count, document_bytes in heads:
            if reads[part].reader != sender:
                continue
            chunks = np.frombuffer(message, dtype=CHUNK_DTYPE, count=chunk_count, offset=at)
            spans = np.frombuffer(message, dtype=SPAN_DTYPE, count=span_count, offset=at + chunks.nbytes)
            (indexes[part], shared[part]), tables[part] = _view(reads[part], chunks, spans, read), chunks
            at += chunks.nbytes + spans.nbytes
            if part == 0:
                document = message[at : at + document_bytes]
            at += document_bytes
    received = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, text, *_ in heads if text}
    places: dict[Holding, Place] = {}
    for (part, rank), text in received.items():
        mine = shared[part][rank]
        first = indexes[part].byte_range(mine.start)[0] if mine else 0
        was_read = _unpacked(read[part, rank], len(mine))
        places[part, rank] = Place(text, first, tables[part][mine.start : mine.stop], was_read)
    return [indexes[part] for part in sorted(indexes)], places, document


def _message(recovered: Recovered, rank: int) -> tuple[list[_Head], list[bytes]]:
    """This rank's message: heads of parts, and the tables of those that it leads; the document of part 0."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    led = set(recovered.led_by(rank))
    for part, loaded in recovered.mine.items():
        if part not in led:
            heads.append((part, described(loaded), _packed(loaded), 0, 0, 0))
            continue
        reader = loaded.reader
        document = reader.meta if part == 0 else b""
        heads.append((part, described(loaded), _packed(loaded), len(reader.chunks), len(reader.spans), len(document)))
        tables += [reader.chunks.tobytes(), reader.spans.tobytes(), document]
    return heads, tables


def _packed(loaded: LoadedPart) -> str:
    """The chunks that this rank has read, a bit for each, in hex; "" for all."""
    if loaded.read is None or loaded.chunks is None:
        return ""
    return np.packbits(loaded.read[loaded.chunks.start : loaded.chunks.stop]).tobytes().hex()


def _unpacked(text: str, count: int) -> Chosen | None:
    """The inverse of :func:`_packed`, as a bool for each of so many chunks; None for all."""
    if not text:
        return None
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count).astype(np.bool_)


def _view(
    read: Read,
    chunks: npt.NDArray[np.void],
    spans: npt.NDArray[np.void],
    was_read: Mapping[tuple[int, int], str],
) -> tuple[PartIndexView, dict[int, range]]:
    """The tables of a part, and the chunks assigned to each of its readers."""
    raw_starts = np.zeros(len(chunks) + 1, dtype=np.uint64)
    np.cumsum(chunks["raw_length"], out=raw_starts[1:])
    shared = read.chunks(raw_starts.tolist())
    readers = np.full(len(chunks), UNREAD, dtype=np.int64)
    for rank, mine in shared.items():
        chosen = _unpacked(was_read.get((read.part, rank), ""), len(mine))
        readers[mine.start : mine.stop] = rank if chosen is None else np.where(chosen, rank, UNREAD)
    per_rank = (chunks["flags"] & FLAG_PER_RANK) != 0
    return PartIndexView(read.part, readers, PartPieces(spans, raw_starts), per_rank), shared


#: Number of a part, and a rank that has read all or some of it.
Holding = tuple[int, int]


class Place(NamedTuple):
    """The memory of the raw bytes that one rank has read of a part, if the ranks of its node can use them.

    Attributes:
        text: see :func:`described`.
        raw_start: where it begins in the raw bytes of the part.
        chunks: rows of CHUNK_DTYPE.
        read: for each chunk, whether it was read and checked; None: all were.
    """

    text: str
    raw_start: int
    chunks: npt.NDArray[np.void]
    read: Chosen | None = None


@dataclass(frozen=True, slots=True)
class NodeCopy:
    """A part, or a range of one, in the memory of this node.

    Attributes:
        raw: its raw bytes, read-only.
        file: the mapped file, open.
        first: the beginning of the raw bytes in the file.
        is_on_a_node: other jobs on this node may remove the file.
        chunks: rows of CHUNK_DTYPE; the part is stored raw, so they are contiguous.
        raw_start: where the raw bytes begin in those of the whole part.
        read: for each chunk, whether it was read and checked; None: all were.
    """

    raw: Bytes
    file: FileSource
    first: int
    is_on_a_node: bool
    chunks: npt.NDArray[np.void]
    raw_start: int = 0
    read: Chosen | None = None

    def problem(self) -> Problem:
        """After the bytes have been used: why they may have changed (:meth:`LoadedPart.problem`), or None."""
        return problem_of(self.file, self._changed) if self.is_on_a_node else None

    def _changed(self) -> Problem:
        at = 0
        try:
            for number, row in enumerate(self.chunks):
                start, at = at, at + int(row["encoded_length"])
                if self.read is not None and not self.read[number]:
                    continue
                byte_range = self.byte_range(self.raw_start + start, self.raw_start + at)
                check_encoded(row, byte_range.data, f"{self.file.path}, chunk {number}")
        except (CorruptFileError, StorageError) as error:
            return error
        return None

    def byte_range(self, start: int, stop: int) -> Bytes:
        """A range of the part's bytes, mapped into this process."""
        piece = self.raw[start - self.raw_start : stop - self.raw_start]
        bring_pages(piece, self.file.path)
        return piece

    def read_into(self, start: int, target: Bytes) -> None:
        """Copy bytes of the part, from ``start``, into memory.

        The kernel copies them without mapping the pages into this process: for a tmpfs with small pages, this takes
        three quarters of the time (docs/benchmarks.md).
        """
        self.file.read_into(self.first + start - self.raw_start, target.data)


@dataclass(frozen=True, slots=True)
class NodeCopies:
    """The bytes that need not be sent to the ranks of a node.

    Attributes:
        mine: copies of bytes that this rank's mates have read.
        on_nodes: parts and readers whose bytes every rank of the reader's node has mapped.
    """

    mine: dict[Holding, NodeCopy]
    on_nodes: frozenset[Holding]

    def close(self) -> None:
        """Close the files and unmap them."""
        for copy in self.mine.values():
            copy.file.close()
        self.mine.clear()


def find_copies(ranks: Ranks, recovered: Recovered, places: Mapping[Holding, Place]) -> NodeCopies:
    """Map the bytes that the mates of this rank have read (collective)."""
    node_of, mine = ranks.node_of, dict[Holding, NodeCopy]()
    holdings = [(read.part, reader) for read in recovered.reads for reader in read.readers]
    lacking = np.array([each not in places for each in holdings], dtype=np.int64)
    try:
        for number, holding in enumerate(holdings):
            reader = holding[1]
            is_mates = node_of[reader] == node_of[ranks.rank] and reader != ranks.rank
            if is_mates and not lacking[number]:
                try:
                    mine[holding] = _mapped(places[holding], ranks.at)
                except Exception:  # of any type: the bytes are sent then
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
    """The file range of a part in text form, for other ranks of the node; "" if they cannot use it."""
    kernel = running_kernel()
    return "" if part.place is None or not kernel else json.dumps([kernel, *astuple(part.place)])


def _mapped(of: Place, at: Callable[[str], Path]) -> NodeCopy:
    kernel, *values = json.loads(of.text)
    place = FileRange(*values)
    if kernel != running_kernel():
        raise StorageError("a rank of the same node runs under another kernel", where=place.path)
    file = FileSource(at(place.path))
    try:
        if file.identity != (place.device, place.inode):
            raise StorageError("a file is not the one that a rank of the same node has read", where=place.path)
        raw = np.frombuffer(file.viewed(), dtype=np.uint8)[place.first : place.first + place.raw_bytes]
        if len(raw) != place.raw_bytes:
            raise StorageError("a file was truncated after it was read", where=place.path)
        return NodeCopy(raw, file, place.first, place.is_on_a_node, of.chunks, of.raw_start, of.read)
    except BaseException:
        file.close()
        raise
