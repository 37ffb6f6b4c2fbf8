"""The tables of all parts: the chunks and their readers on every rank, and of the spans what a rank needs.

Every rank gets the lengths of all chunks, and the spans of leaves that are one piece or belong to one rank. Of a large
step, nearly all spans are of global tensors' boxes, and a rank needs those of its shards alone. Each box has a rank
that keeps its spans (:class:`deeppart.state.pieces.Keepers`), checks that they are complete, and sends them to those
that ask. So what a restore costs a rank does not grow with the shards that all have saved.

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
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.comm import Comm, Operation, finish
from deeppart.errors import StorageError
from deeppart.mapped import populate_pages, running_kernel
from deeppart.nodes import Bytes
from deeppart.part import SPAN_DTYPE, FileSource
from deeppart.plan.restart import Read
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.parts import Chosen, FileRange, LoadedPart, Problem, problem_of
from deeppart.state.document import Structure
from deeppart.state.pieces import Keepers, PartPieces, are_among, keys_of

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
#: from the rank that sends them, numbers of chunks, of which it sends the lengths, and of spans for all ranks.
_Head = tuple[int, str, str, int, int]
#: Bytes of a span and of the number of its part.
_ROW_BYTES = SPAN_DTYPE.itemsize + 4
#: In place of a rank: no rank has read the chunk.
UNREAD = -1


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part, as a rank has them.

    Attributes:
        part: number of the part: the rank that saved it.
        readers: for each chunk the rank that has it in memory; UNREAD if it is not needed.
        pieces: of the pieces of each chunk those that this rank knows of, and where chunks begin.
    """

    part: int
    readers: npt.NDArray[np.int32]
    pieces: PartPieces

    @property
    def is_unread(self) -> npt.NDArray[np.bool_]:
        """For each chunk whether no rank has read it."""
        return np.asarray(self.readers == UNREAD)

    def byte_range(self, chunk: int) -> tuple[int, int]:
        """Begin and end of a chunk in the raw stream, in bytes."""
        begin, end = self.pieces.raw_starts[chunk : chunk + 2].tolist()
        return begin, end


class KeptSpans(NamedTuple):
    """Spans of boxes of global tensors, of any parts.

    Attributes:
        spans: rows of SPAN_DTYPE.
        parts: uint32: number of the part of each.
    """

    spans: npt.NDArray[np.void]
    parts: npt.NDArray[np.uint32]

    @classmethod
    def decode(cls, messages: Iterable[bytes]) -> KeptSpans:
        """The spans of several messages."""
        spans, parts = [np.zeros(0, dtype=SPAN_DTYPE)], [np.zeros(0, dtype=np.uint32)]
        for message in filter(None, messages):  # most are empty
            count = len(message) // _ROW_BYTES
            spans.append(np.frombuffer(message, dtype=SPAN_DTYPE, count=count))
            parts.append(np.frombuffer(message, dtype=np.uint32, count=count, offset=count * SPAN_DTYPE.itemsize))
        return cls(np.concatenate(spans), np.concatenate(parts))

    def encode(self, rows: npt.NDArray[Any]) -> bytes:
        """Some of the spans as a message."""
        return b"".join((self.spans[rows].tobytes(), self.parts[rows].tobytes()))


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of all parts, as far as this rank has them.

    Attributes:
        indexes: in part order.
        copies: bytes of parts in the memory of this node.
        keepers: which rank keeps the spans of a box.
        kept: the spans that this rank keeps for all.
        fetched: ascending keys of the boxes whose spans are in ``indexes``.
    """

    indexes: list[PartIndexView]
    copies: NodeCopies
    keepers: Keepers
    kept: KeptSpans
    fetched: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    @property
    def saved_bytes(self) -> int:
        """Raw bytes of all chunks."""
        return sum(int(index.pieces.raw_starts[-1]) for index in self.indexes)

    @property
    def loaded_bytes(self) -> int:
        """Raw bytes of the chunks that were read."""
        lengths = (np.diff(index.pieces.raw_starts)[~index.is_unread] for index in self.indexes)
        return sum(int(each.sum()) for each in lengths)

    def lack(self, keys: npt.NDArray[np.uint64]) -> bool:
        """True if any of these pieces is a box whose spans were not fetched."""
        return not are_among(keys[self.keepers.are_boxes(keys)], self.fetched).all()


def share_tables(ranks: Ranks, recovered: Recovered, structure: Structure) -> Tables:
    """Send the tables of all parts to the ranks that need them (collective)."""
    what = f"restore of step {recovered.attempt.step}, indexes of the parts"
    keepers = Keepers.of(structure, ranks.comm.size)
    heads, tables, kept = _message(recovered, ranks.rank, keepers)
    messages = ranks.share(heads, tables, what)
    received = ranks.finish(ranks.comm.exchange(kept), what) if keepers.any_boxes else []
    with collection_paused():
        indexes, places = _decomposed(messages, recovered.reads)
    return Tables(indexes, find_copies(ranks, recovered, places), keepers, KeptSpans.decode(received))


def fetch_spans(ranks: Ranks, tables: Tables, wanted: npt.NDArray[np.uint64], what: str) -> Tables:
    """The tables with the spans of the boxes among the pieces that this rank needs (collective)."""
    keepers, kept = tables.keepers, tables.kept
    if not keepers.any_boxes:
        return tables
    wanted = wanted[keepers.are_boxes(wanted)]
    asking = [wanted[rows].tobytes() for rows in _by_rank(keepers.ranks_of(wanted), keepers.ranks)]
    keys = keys_of(kept.spans)
    answers = [
        kept.encode(are_among(keys, np.frombuffer(asked, dtype=np.uint64))) if asked else b""
        for asked in ranks.finish(ranks.comm.exchange(asking), what)
    ]
    found = KeptSpans.decode(ranks.finish(ranks.comm.exchange(answers), what))
    indexes, by_part = [*tables.indexes], np.argsort(found.parts, kind="stable")
    parts, begins = np.unique(found.parts[by_part], return_index=True)
    for part, begin, end in zip(parts.tolist(), begins, np.append(begins, len(by_part))[1:], strict=True):
        spans = np.concatenate([indexes[part].pieces.spans, found.spans[by_part[begin:end]]])
        pieces = PartPieces(spans[np.argsort(spans["raw_offset"])], indexes[part].pieces.raw_starts)
        indexes[part] = replace(indexes[part], pieces=pieces)
    return replace(tables, indexes=indexes, fetched=wanted)


def _by_rank(ranks: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    """For each of ``size`` ranks, the positions at which it stands."""
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.searchsorted(ranks[order], np.arange(1, size)))


def _decomposed(
    messages: list[tuple[list[_Head], bytes]], reads: Sequence[Read]
) -> tuple[list[PartIndexView], dict[Holding, Place]]:
    """The tables in part order; where bytes of parts are in memory."""
    indexes: dict[int, PartIndexView] = {}
    shared: dict[int, dict[int, range]] = {}
    read = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, _, text, *_ in heads}
    for sender, (heads, message) in enumerate(messages):
        at = 0
        for part, _, _, chunk_count, span_count in heads:
            if reads[part].reader != sender:
                continue
            raw_starts = np.zeros(chunk_count + 1, dtype=np.uint64)
            np.cumsum(np.frombuffer(message, dtype=np.uint64, count=chunk_count, offset=at), out=raw_starts[1:])
            spans = np.frombuffer(message, dtype=SPAN_DTYPE, count=span_count, offset=at + 8 * chunk_count)
            shared[part] = reads[part].chunks(raw_starts.tolist())
            indexes[part] = _view(reads[part], shared[part], PartPieces(spans, raw_starts), read)
            at += 8 * chunk_count + spans.nbytes
    received = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, text, *_ in heads if text}
    places: dict[Holding, Place] = {}
    for (part, rank), text in received.items():
        mine = shared[part][rank]
        places[part, rank] = Place(text, indexes[part].byte_range(mine.start)[0] if mine else 0)
    return [indexes[part] for part in sorted(indexes)], places


def _message(recovered: Recovered, rank: int, keepers: Keepers) -> tuple[list[_Head], list[bytes], list[bytes]]:
    """What this rank sends: heads of parts; of those that it leads, the tables for all, and for each rank its spans."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    spans, parts = [np.zeros(0, dtype=SPAN_DTYPE)], [np.zeros(0, dtype=np.uint32)]
    led = set(recovered.led_by(rank))
    for part, loaded in recovered.mine.items():
        if part not in led:
            heads.append((part, described(loaded), _packed(loaded), 0, 0))
            continue
        reader = loaded.reader
        is_kept = keepers.are_kept(reader.spans)
        for_all = reader.spans[~is_kept]
        heads.append((part, described(loaded), _packed(loaded), len(reader.chunks), len(for_all)))
        tables += [reader.chunks["raw_length"].tobytes(), for_all.tobytes()]
        spans.append(reader.spans[is_kept])
        parts.append(np.full(len(spans[-1]), part, dtype=np.uint32))
    kept = KeptSpans(np.concatenate(spans), np.concatenate(parts))
    by_keeper = _by_rank(keepers.ranks_of(keys_of(kept.spans)), keepers.ranks)
    return heads, tables, [kept.encode(rows) for rows in by_keeper]


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
    read: Read, shared: Mapping[int, range], pieces: PartPieces, was_read: Mapping[tuple[int, int], str]
) -> PartIndexView:
    """The tables of a part, with the chunks assigned to each of its readers."""
    readers = np.full(len(pieces.raw_starts) - 1, UNREAD, dtype=np.int32)
    for rank, mine in shared.items():
        chosen = _unpacked(was_read.get((read.part, rank), ""), len(mine))
        readers[mine.start : mine.stop] = rank if chosen is None else np.where(chosen, rank, UNREAD)
    return PartIndexView(read.part, readers, pieces)


#: Number of a part, and a rank that has read all or some of it.
Holding = tuple[int, int]


class Place(NamedTuple):
    """The memory of the raw bytes that one rank has read of a part, if the ranks of its node can use them.

    Attributes:
        text: see :func:`described`.
        raw_start: where it begins in the raw bytes of the part.
    """

    text: str
    raw_start: int


@dataclass(frozen=True, slots=True)
class NodeCopy:
    """A part, or a range of one, in the memory of this node.

    Attributes:
        raw: its raw bytes, read-only; the part is stored raw, so they are contiguous.
        file: the mapped file, open.
        first: the beginning of the raw bytes in the file.
        is_on_a_node: other jobs on this node may remove the file.
        raw_start: where the raw bytes begin in those of the whole part.
    """

    raw: Bytes
    file: FileSource
    first: int
    is_on_a_node: bool
    raw_start: int = 0

    def problem(self) -> Problem:
        """After the bytes have been used: why they may have changed (:meth:`LoadedPart.problem`), or None."""
        try:
            return problem_of(self.file) if self.is_on_a_node else None
        except StorageError as error:
            return error

    def byte_range(self, start: int, stop: int) -> Bytes:
        """A range of the part's bytes, mapped into this process."""
        piece = self.raw[start - self.raw_start : stop - self.raw_start]
        populate_pages(piece, self.file.path)
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
        copy = NodeCopy(raw, file, place.first, place.is_on_a_node, of.raw_start)
        if (problem := copy.problem()) is not None:  # of a file system, too, that could not tell afterwards
            raise problem
        return copy
    except BaseException:
        file.close()
        raise
