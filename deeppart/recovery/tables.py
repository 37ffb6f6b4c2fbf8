"""The tables of all parts, on every rank: what each chunk holds, where it lies, and the document that all share.

Everything small goes in one exchange: with as many parts as ranks, one for each would take longer than the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.part import CHUNK_DTYPE, FLAG_PER_RANK, SPAN_DTYPE
from deeppart.plan.restart import Read
from deeppart.recovery.load_part import Chosen, LoadedPart
from deeppart.recovery.node_copies import Holding, NodeCopies, Place, described, find_copies
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.state.restore.scatter import LeafPiece, chunk_pieces

#: Of a part: its number, where what was read of it lies in memory, which of the sender's chunks were read ("": all),
#: and, from the rank that tells of it, rows of its two tables and bytes of its document.
_Head = tuple[int, str, str, int, int, int]
#: In the place of a rank: none has read the chunk.
UNREAD = -1


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part, as every rank needs them.

    Attributes:
        part: number of the part: the rank that saved it.
        readers: per chunk, the rank that holds it; UNREAD where it is not needed.
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

    def unread(self) -> list[int]:
        """Numbers of the chunks that nobody has read."""
        if UNREAD not in self.readers:
            return []
        return [chunk for chunk, reader in enumerate(self.readers) if reader == UNREAD]


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

    @property
    def saved_bytes(self) -> int:
        """Raw bytes of all chunks."""
        return sum(sum(index.lengths) for index in self.indexes)

    @property
    def loaded_bytes(self) -> int:
        """Raw bytes of those that were read."""
        return self.saved_bytes - sum(index.lengths[chunk] for index in self.indexes for chunk in index.unread())


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
    told = {(part, rank): text for rank, (heads, _) in enumerate(messages) for part, text, *_ in heads if text}
    places: dict[Holding, Place] = {}
    for (part, rank), text in told.items():
        mine = shared[part][rank]
        first = indexes[part].starts[mine.start] if mine else 0
        was_read = _unpacked(read[part, rank], len(mine))
        places[part, rank] = Place(text, first, tables[part][mine.start : mine.stop], was_read)
    return [indexes[part] for part in sorted(indexes)], places, document


def _message(recovered: Recovered, rank: int) -> tuple[list[_Head], list[bytes]]:
    """What this rank has read: heads of parts, and the tables of those that it tells of; the document of part 0."""
    heads: list[_Head] = []
    tables: list[bytes] = []
    led = recovered.led_by(rank)
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
    """Which of its chunks this rank has read, a bit for each, in hex; "" for all."""
    if loaded.read is None or loaded.chunks is None:
        return ""
    return np.packbits(loaded.read[loaded.chunks.start : loaded.chunks.stop]).tobytes().hex()


def _unpacked(text: str, count: int) -> Chosen | None:
    """The same as a bool for each of so many chunks; None for all."""
    if not text:
        return None
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count).astype(np.bool_)


def _view(
    read: Read,
    chunks: npt.NDArray[np.void],
    spans: npt.NDArray[np.void],
    was_read: Mapping[tuple[int, int], str],
) -> tuple[PartIndexView, dict[int, range]]:
    """The tables of a part, and the chunks that each of its readers was to read."""
    raw_starts = np.zeros(len(chunks) + 1, dtype=np.uint64)
    np.cumsum(chunks["raw_length"], out=raw_starts[1:])
    shared = read.chunks(raw_starts.tolist())
    readers: list[int] = []
    for rank, mine in shared.items():
        chosen = _unpacked(was_read.get((read.part, rank), ""), len(mine))
        readers += [rank] * len(mine) if chosen is None else np.where(chosen, rank, UNREAD).tolist()
    view = PartIndexView(
        read.part,
        readers,
        spans,
        chunk_pieces(spans, raw_starts),
        raw_starts[:-1].tolist(),
        chunks["raw_length"].tolist(),
        ((chunks["flags"] & FLAG_PER_RANK) != 0).tolist(),
    )
    return view, shared
