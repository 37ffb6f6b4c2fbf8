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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import StorageError
from deeppart.mapped import populate_pages, running_kernel
from deeppart.nodes import Bytes
from deeppart.part import SPAN_DTYPE, FileSource
from deeppart.plan.restart import Read
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.parts import FileRange, Problem, problem_of
from deeppart.recovery.ranks import Ranks
from deeppart.state.document import Structure
from deeppart.state.pieces import Keepers, PartPieces, WantedPieces, are_among, keys_of

#: From the rank that leads a part: its number, how many chunks it has, whose lengths follow, and how many spans, too.
_Head = tuple[int, int, int]
#: Bytes of a span and of the number of its part.
_ROW_BYTES = SPAN_DTYPE.itemsize + 4
#: In place of a rank: no rank needs the chunk.
UNREAD = -1


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part, as a rank has them.

    Attributes:
        part: number of the part: the rank that saved it.
        readers: for each chunk the rank that reads it into memory; UNREAD if it is not needed.
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
        keepers: which rank keeps the spans of a box.
        kept: the spans that this rank keeps for all.
        fetched: ascending keys of the boxes whose spans are in ``indexes``.
    """

    indexes: list[PartIndexView]
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
    return Tables(_decomposed(messages, recovered.reads), keepers, KeptSpans.decode(received))


def without_unneeded(ranks: Ranks, tables: Tables, needed: WantedPieces, what: str) -> Tables:
    """The tables with those chunks alone that have bytes of the pieces that any rank needs (collective)."""
    mine = [view.pieces.chunks_with(view.pieces.rows_of(needed.of(view.part))) for view in tables.indexes]
    anywhere = ranks.finish(ranks.comm.maximum(np.concatenate(mine).astype(np.int64)), what).astype(np.bool_)
    found, at = [], 0
    for view in tables.indexes:
        chosen, at = anywhere[at : at + len(view.readers)], at + len(view.readers)
        found.append(replace(view, readers=np.where(chosen, view.readers, UNREAD)))
    return replace(tables, indexes=found)


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


def _decomposed(messages: list[tuple[list[_Head], bytes]], reads: Sequence[Read]) -> list[PartIndexView]:
    """The tables in part order."""
    indexes: dict[int, PartIndexView] = {}
    for heads, message in messages:
        at = 0
        for part, chunk_count, span_count in heads:
            raw_starts = np.zeros(chunk_count + 1, dtype=np.uint64)
            np.cumsum(np.frombuffer(message, dtype=np.uint64, count=chunk_count, offset=at), out=raw_starts[1:])
            spans = np.frombuffer(message, dtype=SPAN_DTYPE, count=span_count, offset=at + 8 * chunk_count)
            readers = np.empty(chunk_count, dtype=np.int32)
            for rank, chunks in reads[part].chunks(raw_starts.tolist()).items():
                readers[chunks.start : chunks.stop] = rank
            indexes[part] = PartIndexView(part, readers, PartPieces(spans, raw_starts))
            at += 8 * chunk_count + spans.nbytes
    return [indexes[part] for part in sorted(indexes)]


def _message(recovered: Recovered, rank: int, keepers: Keepers) -> tuple[list[_Head], list[bytes], list[bytes]]:
    """What this rank sends of the parts that it leads: heads, the tables for all, and for each rank its spans."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    spans, parts = [np.zeros(0, dtype=SPAN_DTYPE)], [np.zeros(0, dtype=np.uint32)]
    for part in recovered.led_by(rank):
        reader = recovered.reader(part)
        is_kept = keepers.are_kept(reader.spans)
        for_all = reader.spans[~is_kept]
        heads.append((part, len(reader.chunks), len(for_all)))
        tables += [reader.chunks["raw_length"].tobytes(), for_all.tobytes()]
        spans.append(reader.spans[is_kept])
        parts.append(np.full(len(spans[-1]), part, dtype=np.uint32))
    kept = KeptSpans(np.concatenate(spans), np.concatenate(parts))
    by_keeper = _by_rank(keepers.ranks_of(keys_of(kept.spans)), keepers.ranks)
    return heads, tables, [kept.encode(rows) for rows in by_keeper]


#: Number of a part, and a rank that has read all or some of it.
Holding = tuple[int, int]


@dataclass(frozen=True, slots=True)
class NodeCopy:
    """A part, or a range of one, in the memory of this node.

    Attributes:
        raw: its raw bytes, read-only; the part is stored raw, so they are contiguous.
        file: the mapped file, open.
        place: the range of the file.
    """

    raw: Bytes
    file: FileSource
    place: FileRange

    def problem(self) -> Problem:
        """After the bytes have been used: why they may have changed (:meth:`CheckedPart.problem`), or None."""
        try:
            return problem_of(self.file) if self.place.is_on_a_node else None
        except StorageError as error:
            return error

    def byte_range(self, start: int, stop: int) -> Bytes:
        """A range of the part's bytes, mapped into this process."""
        piece = self.raw[start - self.place.raw_start : stop - self.place.raw_start]
        populate_pages(piece, self.file.path)
        return piece

    def read_into(self, start: int, target: Bytes) -> None:
        """Copy bytes of the part, from ``start``, into memory.

        The kernel copies them without mapping the pages into this process: for a tmpfs with small pages, this takes
        three quarters of the time (docs/benchmarks.md).
        """
        self.file.read_into(self.place.first + start - self.place.raw_start, target.data)


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


def find_copies(ranks: Ranks, recovered: Recovered, what: str) -> NodeCopies:
    """Map the bytes that the mates of this rank have read (collective)."""
    places = [(part, astuple(opened.place)) for part, opened in recovered.mine.items() if opened.place is not None]
    kernel, node_of, mine = running_kernel(), ranks.node_of, dict[Holding, NodeCopy]()
    offered = json.dumps([kernel, places]).encode() if kernel and places else b""
    received = [json.loads(text or '["", []]') for text in ranks.finish(ranks.comm.allgather(offered), what)]
    found = {(part, rank): FileRange(*each) for rank, (_, theirs) in enumerate(received) for part, each in theirs}
    holdings = [(read.part, reader) for read in recovered.reads for reader in read.readers]
    lacking = np.array([each not in found for each in holdings], dtype=np.int64)
    try:
        for number, holding in enumerate(holdings):
            reader = holding[1]
            is_mates = node_of[reader] == node_of[ranks.rank] and reader != ranks.rank
            if is_mates and not lacking[number]:
                try:
                    if received[reader][0] != kernel:
                        raise StorageError("a rank of the same node runs under another kernel")
                    mine[holding] = _mapped(found[holding], ranks.at)
                except Exception:  # of any type: the bytes are sent then
                    lacking[number] = 1
        lacking = ranks.finish(ranks.comm.maximum(lacking), what)
    except BaseException:
        NodeCopies(mine, frozenset()).close()
        raise
    on_nodes = frozenset(each for each, lacks in zip(holdings, lacking.tolist(), strict=True) if not lacks)
    for holding in mine.keys() - on_nodes:
        mine.pop(holding).file.close()
    return NodeCopies(mine, on_nodes)


def _mapped(place: FileRange, at: Callable[[str], Path]) -> NodeCopy:
    file = FileSource(at(place.path))
    try:
        if file.identity != (place.device, place.inode):
            raise StorageError("a file is not the one that a rank of the same node has read", where=place.path)
        raw = np.frombuffer(file.viewed(), dtype=np.uint8)[place.first : place.first + place.raw_bytes]
        if len(raw) != place.raw_bytes:
            raise StorageError("a file was truncated after it was read", where=place.path)
        copy = NodeCopy(raw, file, place)
        if (problem := copy.problem()) is not None:  # of a file system, too, that could not tell afterwards
            raise problem
        return copy
    except BaseException:
        file.close()
        raise
