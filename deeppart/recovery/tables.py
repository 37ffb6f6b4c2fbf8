"""The tables of all parts, on every rank: what each chunk holds, where it lies, and the document that all share.

Everything small goes in one exchange: with as many parts as ranks, one for each would take longer than the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.part import CHUNK_DTYPE, FLAG_PER_RANK, SPAN_DTYPE
from deeppart.plan.restart import Read
from deeppart.recovery.node_copies import Holding, NodeCopies, Place, described, find_copies
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.state.restore.scatter import LeafPiece, chunk_pieces

#: Of a part: its number, where what was read of it lies in memory, and, from the rank that tells of it, rows of its two
#: tables and bytes of its document.
_Head = tuple[int, str, int, int, int]


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part, as every rank needs them.

    Attributes:
        part: number of the part: the rank that saved it.
        readers: per chunk, the rank that holds it.
        spans: rows of SPAN_DTYPE.
        pieces: per chunk, what it holds.
        starts, lengths: of the chunks in the raw stream, in bytes.
        per_rank: per chunk, whether it holds bytes of the saving rank alone.
    """

    part: int
    readers: list[int]
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
        copies: what lies in the memory of this node.
    """

    indexes: list[PartIndexView]
    document: bytes
    copies: NodeCopies


def share_tables(ranks: Ranks, recovered: Recovered) -> Tables:
    """Tell every rank what each part holds (collective)."""
    what = f"restore of step {recovered.attempt.step}, indexes of the parts"
    messages = ranks.share(*_message(recovered, ranks.rank), what)
    with collection_paused():
        indexes, places, document = _taken_apart(messages, recovered.reads)
    return Tables(indexes, document, find_copies(ranks, recovered, places))


def _taken_apart(
    messages: list[tuple[list[_Head], bytes]], reads: Sequence[Read]
) -> tuple[list[PartIndexView], dict[Holding, Place], bytes]:
    """The tables in part order; where in memory what of the parts lies; the document of part 0."""
    indexes: dict[int, PartIndexView] = {}
    shared: dict[int, dict[int, range]] = {}
    tables: dict[int, npt.NDArray[np.void]] = {}
    document = b""
    for sender, (heads, message) in enumerate(messages):
        at = 0
        for part, _, chunk_count, span_count, document_bytes in heads:
            if reads[part].reader != sender:
                continue
            chunks = np.frombuffer(message, dtype=CHUNK_DTYPE, count=chunk_count, offset=at)
            spans = np.frombuffer(message, dtype=SPAN_DTYPE, count=span_count, offset=at + chunks.nbytes)
            (indexes[part], shared[part]), tables[part] = _view(reads[part], chunks, spans), chunks
            at += chunks.nbytes + spans.nbytes
            if part == 0:
                document = message[at : at + document_bytes]
            at += document_bytes
    told = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, text, *_ in heads if text}
    places: dict[Holding, Place] = {}
    for (part, rank), text in told.items():
        mine = shared[part][rank]
        first = indexes[part].starts[mine.start] if mine else 0
        places[part, rank] = Place(text, first, tables[part][mine.start : mine.stop])
    return [indexes[part] for part in sorted(indexes)], places, document


def _message(recovered: Recovered, rank: int) -> tuple[list[_Head], list[bytes]]:
    """What this rank has read: heads of parts, and the tables of those that it tells of; the document of part 0."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    led = recovered.led_by(rank)
    for part, loaded in recovered.mine.items():
        if part not in led:
            heads.append((part, described(loaded), 0, 0, 0))
            continue
        reader = loaded.reader
        document = reader.meta if part == 0 else b""
        heads.append((part, described(loaded), len(reader.chunks), len(reader.spans), len(document)))
        tables += [reader.chunks.tobytes(), reader.spans.tobytes(), document]
    return heads, tables


def _view(
    read: Read, chunks: npt.NDArray[np.void], spans: npt.NDArray[np.void]
) -> tuple[PartIndexView, dict[int, range]]:
    """The tables of a part, and the chunks that each of its readers holds."""
    raw_starts = np.zeros(len(chunks) + 1, dtype=np.uint64)
    np.cumsum(chunks["raw_length"], out=raw_starts[1:])
    shared = read.chunks(raw_starts.tolist())
    view = PartIndexView(
        read.part,
        [rank for rank, mine in shared.items() for _ in mine],
        spans,
        chunk_pieces(spans, raw_starts),
        raw_starts[:-1].tolist(),
        chunks["raw_length"].tolist(),
        ((chunks["flags"] & FLAG_PER_RANK) != 0).tolist(),
    )
    return view, shared
