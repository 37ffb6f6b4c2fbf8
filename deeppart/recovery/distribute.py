"""Distributes the bytes of verified parts to the arrays of all ranks.

Each rank determines which bytes of which chunk it needs. If all ranks need the same bytes of a chunk, as is usual, it
is relayed: sent once to each node and on to its ranks (:mod:`deeppart.plan.restart.reading`). Of other chunks, each
rank requests the bytes that it needs from the rank that reads it. What this rank reads, or has in the memory of its
node, is copied from there. Chunks of different readers are in transfer together, so that all links and cores are used;
a chunk with one piece for one array is read or received directly into it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.comm import Operation, interleaved
from deeppart.errors import FormatError, StorageError
from deeppart.model import Box
from deeppart.nodes import Bytes
from deeppart.plan.restart import Hop, Routes
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.tables import UNREAD, Holding, NodeCopies, PartIndexView, Tables
from deeppart.state.pieces import ANY_PART, LeafPiece, PartPieces
from deeppart.state.restore import Scatter, Want, cut_patch

T = TypeVar("T")
#: Chunks in transfer at once.
WINDOW = 8
#: Relayed chunks have this many tags in turn, since they are passed on in order of arrival. No rank has chunks in
#: transfer that are so far from each other: two with the same tag arrive in the order in which they were sent.
_TAGS = 1024
_ORDER_TAG = 2050
_DIGEST_BITS = (1 << 61) - 1
#: Operations to begin one after another, and what to call at the end of each.
_Transfers = Iterator[tuple[Operation[None], Callable[[], None]]]


class Failure(NamedTuple):
    """An error on this rank.

    Attributes:
        error: the exception.
        part: the part whose source could not be read; None for other errors.
    """

    error: Exception
    part: int | None = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of a part, and the bytes of its numbered pieces that this rank needs."""

    index: PartIndexView
    number: int
    pieces: list[LeafPiece]
    wants: list[tuple[int, Want]]

    @property
    def reader(self) -> int:
        return int(self.index.readers[self.number])

    @property
    def holding(self) -> Holding:
        return self.index.part, self.reader

    @property
    def byte_range(self) -> tuple[int, int]:
        return self.index.byte_range(self.number)

    @property
    def nbytes(self) -> int:
        begin, end = self.byte_range
        return end - begin

    def digest(self) -> int:
        """A number that is the same for ranks that need the same bytes of the chunk, and never 0."""
        wants = [(piece, 0 if want.is_same else hash((want.source, want.target))) for piece, want in self.wants]
        return (hash(tuple(wants)) & _DIGEST_BITS) + 1

    def order(self) -> list[Any]:
        """The request to the reader of the chunk: where pieces begin in it, and their elements, all by default."""
        wants = [
            [self.pieces[number].at, *(() if want.is_same else (want.source, want.target, want.itemsize))]
            for number, want in self.wants
        ]
        return [self.index.part, self.number, wants]

    def ordered_bytes(self) -> int:
        """The number of requested bytes."""
        return sum(want.nbytes_of(self.pieces[number]) for number, want in self.wants)

    def filling(self, scatter: Scatter, here: _Here) -> Callable[[], Bytes]:
        """A call that fills arrays from the chunk, which is here, and returns its bytes."""
        return partial(scatter.bring, self.index.part, self.pieces, self.nbytes, here.data, here.read_into)


class _Begin(Protocol):
    """Begins a call, perhaps in another thread."""

    def __call__(self, call: Callable[[], T]) -> Future[T]: ...


class _Here(NamedTuple):
    """How to get the raw bytes of a chunk without a message: in memory, or into memory."""

    data: Callable[[], Bytes]
    read_into: Callable[[Bytes], None]


class Delivery:
    """Brings the bytes of a recovered step to the arrays that need them; collective.

    A rank that fails to read or write continues to the end, with useless bytes if necessary, since other ranks wait for
    the bytes that it passes on.
    """

    def __init__(self, ranks: Ranks, recovered: Recovered, tables: Tables, copies: NodeCopies) -> None:
        self._ranks, self._recovered, self._tables, self._copies = ranks, recovered, tables, copies
        self._routes = Routes(ranks.node_of, ranks.rank)
        #: All pieces of the parts that this rank has read.
        self._read = {
            part: PartPieces(opened.reader.spans, opened.reader.raw_starts) for part, opened in recovered.mine.items()
        }
        lengths = [len(index.readers) for index in tables.indexes]
        #: Numbers of the first chunks of the parts, when chunks of all parts are counted; and the positions of all
        #: chunks in an order in which their readers alternate.
        self._firsts = [0, *accumulate(lengths)][:-1]
        self._places = _in_turns(np.concatenate([index.readers for index in tables.indexes]))
        self._what = f"restore of step {recovered.attempt.step}, distributing"

    def bring(self, scatter: Scatter) -> Failure | None:
        """Fill the arrays of all ranks; returns the first error of this rank, which all ranks have to receive."""
        attempts = _Attempts()
        chunks = self._wanted(scatter, attempts)
        is_relayed = self._agree(chunks)
        relayed = [chunk for place, chunk in chunks if is_relayed[place]]
        others = [chunk for place, chunk in chunks if not is_relayed[place]]
        with _workers(self._ranks.threads) as begin:
            self._ranks.finish(self._relaying(relayed, scatter, attempts, begin), self._what)
            remote = []
            for chunk in others:
                here = self._here(chunk)
                if here is None:
                    remote.append(chunk)
                else:
                    begin(partial(attempts.result, chunk.filling(scatter, here), chunk.index.part))
        if self._ranks.finish(self._ranks.comm.maximum(np.array([bool(remote)], dtype=np.int64)), self._what).any():
            orders: list[list[list[Any]]] = [[] for _ in range(self._ranks.comm.size)]
            for chunk in remote:
                orders[chunk.reader].append(chunk.order())
            encoded = [json.dumps(each).encode() if each else b"" for each in orders]
            received = self._ranks.finish(self._ranks.comm.exchange(encoded), self._what)
            asked = [json.loads(text or b"[]") for text in received]
            answering, receiving = self._answers(asked, attempts), self._received(remote, scatter, attempts)
            self._ranks.finish(interleaved([_in_window(answering), _in_window(receiving)]), self._what)
        return attempts.failure

    def _wanted(self, scatter: Scatter, attempts: _Attempts) -> list[tuple[int, _Chunk]]:
        """The chunks with bytes that this rank needs, by their positions in the order of all chunks read."""
        chunks: list[tuple[int, _Chunk]] = []
        if self._tables.lack(scatter.wanted.of(ANY_PART)):
            attempts.failure = Failure(_left_out("spans", "a global tensor"))
        for index, first in zip(self._tables.indexes, self._firsts, strict=True):
            for number, pieces, wants in scatter.chunks(index.part, index.pieces):
                if index.readers[number] == UNREAD:
                    leaf = f"leaf {pieces[wants[0][0]].leaf} of part {index.part}"
                    attempts.failure = attempts.failure or Failure(_left_out("bytes", leaf))
                else:
                    chunks.append((int(self._places[first + number]), _Chunk(index, number, pieces, wants)))
        return sorted(chunks, key=itemgetter(0))

    def _agree(self, chunks: Sequence[tuple[int, _Chunk]]) -> npt.NDArray[np.bool_]:
        """By position, whether all ranks need the same bytes of a chunk."""
        digests = np.zeros(len(self._places), dtype=np.int64)
        for place, chunk in chunks:
            digests[place] = chunk.digest()
        most = self._ranks.finish(self._ranks.comm.maximum(np.concatenate([digests, -digests])), self._what)
        highest, lowest = most[: len(digests)], -most[len(digests) :]
        return np.asarray((highest == lowest) & (lowest > 0))

    def _here(self, chunk: _Chunk) -> _Here | None:
        """How to get a chunk that this rank reads, or that is in the memory of its node; None for others."""
        if chunk.reader == self._ranks.rank:
            return _Here(partial(self._read_chunk, chunk.index.part, chunk.number), partial(self._read_into, chunk))
        if chunk.holding in self._copies.mine:
            (begin, end), found = chunk.byte_range, self._copies.mine[chunk.holding]
            return _Here(partial(found.byte_range, begin, end), partial(found.read_into, begin))
        return None

    def _read_chunk(self, part: int, chunk: int) -> Bytes:
        return self._recovered.mine[part].data(chunk)

    def _read_into(self, chunk: _Chunk, target: Bytes) -> None:
        self._recovered.mine[chunk.index.part].read_into(chunk.number, target)

    # --- chunks that all ranks need ---

    def _relaying(
        self, chunks: Sequence[_Chunk], scatter: Scatter, attempts: _Attempts, begin: _Begin
    ) -> Operation[None]:
        window = _Window(WINDOW)
        for number, chunk in enumerate(chunks):
            while window.is_full(number):
                yield window.advance()
            part, tag, here = chunk.index.part, number % _TAGS, self._here(chunk)
            hop = self._routes.hop(chunk.reader, number, seen=chunk.holding in self._copies.on_nodes)
            if hop is not None and hop.source is not None:
                window.add(number, *self._start(chunk, hop, hop.source, tag, scatter, attempts))
            filling = None if here is None else begin(partial(attempts.result, chunk.filling(scatter, here), part))
            if hop is not None and hop.source is None:
                window.add(number, self._sending_filled(filling, chunk, hop, tag), _no_more)
            if filling is not None and window.flying:
                yield window.advance()
        yield from window.emptied()

    def _sending_filled(
        self, filling: Future[Bytes | None] | None, chunk: _Chunk, hop: Hop, tag: int
    ) -> Operation[None]:
        """Send a chunk once arrays have been filled from it; zeros if it could not be read."""
        while filling is not None and not filling.done():
            yield False
        data = None if filling is None else filling.result()
        yield from self._sending(np.zeros(chunk.nbytes, dtype=np.uint8) if data is None else data, hop, tag)

    def _start(
        self, chunk: _Chunk, hop: Hop, source: int, tag: int, scatter: Scatter, attempts: _Attempts
    ) -> tuple[Operation[None], Callable[[], None]]:
        """Begin to receive a chunk and pass it on; returns the operation and a call for its end."""
        part = chunk.index.part
        target = attempts.result(lambda: scatter.direct(part, chunk.pieces, chunk.nbytes))
        data = np.empty(chunk.nbytes, dtype=np.uint8) if target is None else target
        receiving = self._ranks.comm.receive_into(data, source, tag)
        land = attempts.at(lambda: scatter.write(part, chunk.pieces, data)) if target is None else _no_more
        return self._passing_on(receiving, data, hop, tag), land

    def _passing_on(self, receiving: Operation[None], data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        yield from receiving
        yield from self._sending(data, hop, tag)

    def _sending(self, data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        return interleaved([self._ranks.comm.send(data, target, tag) for target in hop.targets])

    # --- chunks that some ranks need ---

    # Messages are sent and received in the order of all chunks: so no two ranks wait for each other, a rank has only a
    # few in transfer, however many ranks there are, and reads each chunk once.

    def _answers(self, asked: Sequence[list[Any]], attempts: _Attempts) -> _Transfers:
        """Send what other ranks have requested, one message for each chunk and rank."""
        answers = [
            (int(self._places[self._firsts[part] + chunk]), to, part, chunk, wants)
            for to, orders in enumerate(asked)
            for part, chunk, wants in orders
        ]
        last, data = -1, None
        for place, to, part, chunk, wants in sorted(answers, key=itemgetter(0, 1)):
            if place != last:
                last, data = place, attempts.result(partial(self._read_chunk, part, chunk), part)
            yield self._ranks.comm.send(self._packed(part, chunk, wants, data, attempts), to, _ORDER_TAG), _no_more

    def _received(self, chunks: Sequence[_Chunk], scatter: Scatter, attempts: _Attempts) -> _Transfers:
        """Receive what this rank has requested."""
        for chunk in chunks:
            target = attempts.result(partial(scatter.direct, chunk.index.part, chunk.pieces, chunk.nbytes))
            data = np.empty(chunk.ordered_bytes(), dtype=np.uint8) if target is None else target
            receiving = self._ranks.comm.receive_into(data, chunk.reader, _ORDER_TAG)
            yield receiving, _no_more if target is not None else attempts.at(_unpacking(chunk, data, scatter))

    def _packed(
        self, part: int, chunk: int, wants: Sequence[list[Any]], data: Bytes | None, attempts: _Attempts
    ) -> Bytes:
        """The bytes that another rank has requested of a chunk, concatenated; zeros if it could not be read."""
        pieces = {piece.at: piece for piece in self._read[part].of(chunk)}
        found = [(pieces[at], _want(rest)) for at, *rest in wants]
        packed = np.zeros(sum(want.nbytes_of(piece) for piece, want in found), dtype=np.uint8)

        def pack(data: Bytes) -> None:
            at = 0
            for piece, want in found:
                for elements in _elements(want, piece, data[piece.at : piece.at + piece.length]):
                    target = packed[at : at + elements.nbytes].view(elements.dtype).reshape(elements.shape)
                    np.copyto(target, elements)
                    at += elements.nbytes

        if data is not None:
            attempts.result(partial(pack, data), part)
        return packed


def _in_turns(readers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The positions of chunks in an order in which their readers alternate, the same on all ranks."""
    by_reader = np.argsort(readers, kind="stable")
    ordered = readers[by_reader]
    turns = np.empty(len(readers), dtype=np.int64)
    turns[by_reader] = np.arange(len(readers)) - np.searchsorted(ordered, ordered)
    places = np.empty(len(readers), dtype=np.int64)
    places[np.lexsort((readers, turns))] = np.arange(len(readers))
    return places


def _want(encoded: list[Any]) -> Want:
    """The decoded request of another rank, for one of its arrays."""
    if not encoded:
        return Want(0, Box((), ()), Box((), ()), 1, True)  # all bytes, whatever their boxes
    source, target, itemsize = encoded
    return Want(0, _box(*source), _box(*target), itemsize, False)


def _box(offset: list[int], sizes: list[int]) -> Box:
    return Box(tuple(offset), tuple(sizes))


def _elements(want: Want, piece: LeafPiece, held: Bytes) -> Iterator[Any]:
    """The requested elements of a piece, array by array."""
    if want.is_same:
        yield held
    else:
        for patch in want.of(piece):
            yield cut_patch(held, patch, want.itemsize)


def _unpacking(chunk: _Chunk, data: Bytes, scatter: Scatter) -> Callable[[], None]:
    """A call that writes the received bytes, which are concatenated, into arrays."""

    def unpack() -> None:
        at = 0
        for number, want in chunk.wants:
            at = scatter.fill_packed(want, chunk.pieces[number], data, at)

    return unpack


def _left_out(what: str, of: str) -> StorageError:
    """The error for what was not read or fetched because it was not requested."""
    return StorageError(
        f"{what} that a restore needs were left out when the step was read; this is a fault of the library",
        found=of,
        todo="report it; restore the whole state meanwhile, without keys= and exclude=",
    )


class _Attempts:
    """Runs a rank's work while others wait for the bytes that it passes on: errors are kept until the end.

    Attributes:
        failure: an error of the work, or None. Any thread may set it; a later one may replace an earlier one.
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None

    def at(self, do: Callable[[], None], part: int | None = None) -> Callable[[], None]:
        """A call that does this unless something has failed before; its error is recorded."""
        return lambda: self.result(do, part)

    def result(self, do: Callable[[], T], part: int | None = None) -> T | None:
        """The result of ``do``; None if it fails, or something has failed before."""
        if self.failure is None:
            try:
                return do()
            except (StorageError, FormatError) as error:
                self.failure = Failure(error, part)
            except Exception as error:  # of any type: other ranks wait for the bytes that follow
                self.failure = Failure(error)
        return None


@dataclass(slots=True)
class _Flight:
    """A chunk in transfer to this rank, and on from it."""

    number: int
    operation: Operation[None]
    land: Callable[[], None]
    over: bool = False


class _Window:
    """Chunks in transfer, which leave in the order in which they began.

    Attributes:
        flying: the chunks.
    """

    def __init__(self, most: int) -> None:
        self._most, self.flying = most, deque[_Flight]()

    def is_full(self, number: int) -> bool:
        """True if a chunk with a number, which ascend, cannot begin yet."""
        return bool(self.flying) and (len(self.flying) >= self._most or number - self.flying[0].number >= _TAGS)

    def add(self, number: int, operation: Operation[None], land: Callable[[], None]) -> None:
        """A transfer has begun; ``land`` is called when it has ended."""
        self.flying.append(_Flight(number, operation, land))

    def advance(self) -> bool:
        """Advance all transfers; true if any made progress."""
        moved = False
        for flight in self.flying:
            if not flight.over:
                try:
                    moved = next(flight.operation) or moved
                except StopIteration:
                    flight.land()
                    flight.over = moved = True
        while self.flying and self.flying[0].over:
            self.flying.popleft()
        return moved

    def emptied(self) -> Operation[None]:
        """Advance all transfers until they have ended."""
        while self.flying:
            yield self.advance()


def _in_window(transfers: _Transfers) -> Operation[None]:
    """Make transfers in order, a few at once."""
    window = _Window(WINDOW)
    for number, transfer in enumerate(transfers):
        while window.is_full(number):
            yield window.advance()
        window.add(number, *transfer)
    yield from window.emptied()


def _no_more() -> None:
    """Do nothing."""


@contextmanager
def _workers(threads: int) -> Iterator[_Begin]:
    """A function that begins calls that do not raise: in this thread, or in several; all have ended on exit."""
    with ThreadPoolExecutor(max(1, threads), "deeppart-fill") as pool:

        def begin(call: Callable[[], T]) -> Future[T]:
            if threads > 1:
                return pool.submit(call)
            ended = Future[T]()
            ended.set_result(call())
            return ended

        try:
            yield begin
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
