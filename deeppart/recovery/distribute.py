"""Distribute: from verified parts, each in one rank's memory, to the arrays of all ranks.

Shared chunks are broadcast, per-rank chunks go to the one rank they belong to. Chunks of different readers are in
flight together, so that every rank's links and cores work at once; a chunk that holds a piece of one array is received
straight into it. All ranks walk the same schedule, computed from the parts' indexes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, Operation
from deeppart.comm.waiting import finish
from deeppart.part import CHUNK_DTYPE, FLAG_PER_RANK, SPAN_DTYPE
from deeppart.recovery.load_part import LoadedPart
from deeppart.recovery.recover import Recovered
from deeppart.state.restore.scatter import LeafPiece, Scatter, chunk_pieces

#: Chunks on their way at once.
WINDOW = 8

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PartIndexView:
    """The tables of a part that one rank holds, as every rank needs them.

    Attributes:
        part: number of the part: the rank that saved it.
        reader: rank that holds it.
        spans: rows of SPAN_DTYPE.
        pieces: per chunk, what it holds.
        lengths: raw bytes per chunk.
        per_rank: per chunk, whether it holds bytes of the saving rank alone.
    """

    part: int
    reader: int
    spans: npt.NDArray[np.void]
    pieces: list[list[LeafPiece]]
    lengths: list[int]
    per_rank: list[bool]


def share_indexes(comm: Comm, recovered: Recovered, timeout: float) -> list[PartIndexView]:
    """Tell every rank what each part holds (collective), in part order."""
    views = []
    for read in recovered.reads:
        data: bytes | None = None
        if read.part in recovered.mine:
            reader = recovered.mine[read.part].reader
            head = json.dumps([len(reader.chunks), len(reader.spans)]).encode().ljust(64)
            data = head + reader.chunks.tobytes() + reader.spans.tobytes()
        what = f"restore of step {recovered.attempt.step}, index of part {read.part}"
        text = finish(comm, comm.broadcast(data, root=read.reader), what, timeout)
        chunk_count, span_count = json.loads(text[:64])
        chunks = np.frombuffer(text, dtype=CHUNK_DTYPE, count=chunk_count, offset=64)
        spans = np.frombuffer(text, dtype=SPAN_DTYPE, count=span_count, offset=64 + chunks.nbytes)
        raw_starts = np.zeros(chunk_count + 1, dtype=np.uint64)
        np.cumsum(chunks["raw_length"], out=raw_starts[1:])
        views.append(
            PartIndexView(
                read.part,
                read.reader,
                spans,
                chunk_pieces(spans, raw_starts),
                chunks["raw_length"].tolist(),
                ((chunks["flags"] & FLAG_PER_RANK) != 0).tolist(),
            )
        )
    return views


def distribute_shared(
    comm: Comm, recovered: Recovered, indexes: list[PartIndexView], scatter: Scatter, timeout: float
) -> None:
    """Fill the replicated leaves of all ranks (collective)."""
    _transfer(comm, recovered, _schedule(indexes, comm.size, per_rank=False), scatter, timeout)


def distribute_own(
    comm: Comm, recovered: Recovered, indexes: list[PartIndexView], scatter: Scatter, timeout: float
) -> None:
    """Give every rank the per-rank leaves of the part it saved itself (collective; same world size as at the save)."""
    _transfer(comm, recovered, _schedule(indexes, comm.size, per_rank=True), scatter, timeout, to_owner=True)


def distribute_all_own(
    comm: Comm,
    recovered: Recovered,
    indexes: list[PartIndexView],
    scatters: Callable[[int], Scatter],
    timeout: float,
) -> None:
    """Give every rank the per-rank leaves of every part (collective).

    Args:
        scatters: part number -> where its leaves go.
    """
    for index in indexes:
        schedule = ((index, chunk) for chunk, own in enumerate(index.per_rank) if own)
        _transfer(comm, recovered, schedule, scatters(index.part), timeout)


def _schedule(indexes: list[PartIndexView], ranks: int, *, per_rank: bool) -> Iterator[tuple[PartIndexView, int]]:
    """Chunks of all parts, the readers taking turns."""
    queues: list[deque[tuple[PartIndexView, int]]] = [deque() for _ in range(ranks)]
    for index in indexes:
        queues[index.reader].extend((index, chunk) for chunk, own in enumerate(index.per_rank) if own == per_rank)
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.popleft()


@dataclass(slots=True)
class _Flight:
    """One chunk on its way to this rank (or from it)."""

    operation: Operation[None] | None
    pieces: list[LeafPiece]
    data: Bytes
    write: bool


def _transfer(
    comm: Comm,
    recovered: Recovered,
    schedule: Iterator[tuple[PartIndexView, int]],
    scatter: Scatter,
    timeout: float,
    *,
    to_owner: bool = False,
) -> None:
    what = f"restore of step {recovered.attempt.step}, distributing"
    flying: deque[_Flight] = deque()
    for index, chunk in schedule:
        if not to_owner and not any(scatter.wants(piece.leaf) for piece in index.pieces[chunk]):
            continue
        flight = _start(comm, recovered.mine.get(index.part), index, chunk, scatter, to_owner)
        if flight is None:
            continue
        flying.append(flight)
        if len(flying) >= WINDOW:
            _land(comm, flying.popleft(), scatter, what, timeout)
    while flying:
        _land(comm, flying.popleft(), scatter, what, timeout)


def _start(
    comm: Comm, held: LoadedPart | None, index: PartIndexView, chunk: int, scatter: Scatter, to_owner: bool
) -> _Flight | None:
    pieces = index.pieces[chunk]
    if held is not None:
        data = held.chunk(chunk)
        if not to_owner:
            return _Flight(comm.broadcast_into(data, index.reader) if comm.size > 1 else None, pieces, data, True)
        if index.part == comm.rank:
            return _Flight(None, pieces, data, True)
        return _Flight(comm.send(data, index.part, tag=0), pieces, data, False)
    if to_owner and index.part != comm.rank:
        return None
    target = scatter.direct(pieces)
    data = target if target is not None else np.empty(index.lengths[chunk], dtype=np.uint8)
    if to_owner:
        return _Flight(comm.receive_into(data, index.reader, tag=0), pieces, data, target is None)
    return _Flight(comm.broadcast_into(data, index.reader), pieces, data, target is None)


def _land(comm: Comm, flight: _Flight, scatter: Scatter, what: str, timeout: float) -> None:
    if flight.operation is not None:
        finish(comm, flight.operation, what, timeout)
    if flight.write:
        scatter.write(flight.pieces, flight.data)
