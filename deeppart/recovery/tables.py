"""The tables of all parts, on every rank: what each chunk holds, where it lies, and the document that all share.

Everything small goes in one exchange: with as many parts as ranks, one for each would take longer than the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.part import CHUNK_DTYPE, FLAG_PER_RANK, SPAN_DTYPE
from deeppart.recovery.node_copies import NodeCopies, described, find_copies
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.state.restore.scatter import LeafPiece, chunk_pieces

#: Of a part: its number, where it lies in memory, rows of its two tables, and bytes of its document.
_Head = tuple[int, str, int, int, int]


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part that one rank holds, as every rank needs them.

    Attributes:
        part: number of the part: the rank that saved it.
        reader: rank that holds it.
        spans: rows of SPAN_DTYPE.
        pieces: per chunk, what it holds.
        starts, lengths: of the chunks in the raw stream, in bytes.
        per_rank: per chunk, whether it holds bytes of the saving rank alone.
    """

    part: int
    reader: int
    spans: npt.NDArray[np.void]
    pieces: list[list[LeafPiece]]
    starts: list[int]
    lengths: list[int]
    per_rank: list[bool]


@dataclass(frozen=True, slots=True)
class Tables:
    """What all ranks know of the parts.

    Attributes:
        indexes: in part order.
        document: of part 0.
        copies: the parts that lie in the memory of this node.
    """

    indexes: list[PartIndexView]
    document: bytes
    copies: NodeCopies


def share_tables(ranks: Ranks, recovered: Recovered) -> Tables:
    """Tell every rank what each part holds (collective)."""
    what = f"restore of step {recovered.attempt.step}, indexes of the parts"
    messages = ranks.share(*_message(recovered), what)
    with collection_paused():
        indexes, places, tables, document = _taken_apart(messages)
    return Tables(indexes, document, find_copies(ranks, recovered, places, tables))


def _taken_apart(
    messages: list[tuple[list[_Head], bytes]],
) -> tuple[list[PartIndexView], dict[int, str], dict[int, npt.NDArray[np.void]], bytes]:
    """The tables in part order; the places of parts in memory, and their chunks; the document of part 0."""
    indexes: dict[int, PartIndexView] = {}
    places: dict[int, str] = {}
    tables: dict[int, npt.NDArray[np.void]] = {}
    document = b""
    for reader, (heads, message) in enumerate(messages):
        at = 0
        for part, place, chunk_count, span_count, document_bytes in heads:
            chunks = np.frombuffer(message, dtype=CHUNK_DTYPE, count=chunk_count, offset=at)
            spans = np.frombuffer(message, dtype=SPAN_DTYPE, count=span_count, offset=at + chunks.nbytes)
            indexes[part] = _view(part, reader, chunks, spans)
            at += chunks.nbytes + spans.nbytes
            if place:
                places[part], tables[part] = place, chunks
            if part == 0:
                document = message[at : at + document_bytes]
            at += document_bytes
    return [indexes[part] for part in sorted(indexes)], places, tables, document


def _message(recovered: Recovered) -> tuple[list[_Head], list[bytes]]:
    """What this rank has read: a head for each part, and the tables of each; of part 0, the document, too."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    for part, loaded in recovered.mine.items():
        reader = loaded.reader
        document = reader.meta if part == 0 else b""
        heads.append((part, described(loaded), len(reader.chunks), len(reader.spans), len(document)))
        tables += [reader.chunks.tobytes(), reader.spans.tobytes(), document]
    return heads, tables


def _view(part: int, reader: int, chunks: npt.NDArray[np.void], spans: npt.NDArray[np.void]) -> PartIndexView:
    raw_starts = np.zeros(len(chunks) + 1, dtype=np.uint64)
    np.cumsum(chunks["raw_length"], out=raw_starts[1:])
    return PartIndexView(
        part,
        reader,
        spans,
        chunk_pieces(spans, raw_starts),
        raw_starts[:-1].tolist(),
        chunks["raw_length"].tolist(),
        ((chunks["flags"] & FLAG_PER_RANK) != 0).tolist(),
    )
