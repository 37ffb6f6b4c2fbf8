"""Distribute: from verified parts to the arrays of all ranks.

Each rank works out what it wants of which chunk. Where that is the same for all ranks, as nearly always, the chunk is
relayed: once to each node and on to its ranks (:mod:`deeppart.plan.restart.reading`). Of any other, the rank that has
read it sends to each that wants some of it just that, on request. What lies in the memory of a rank or of its node
is copied from there. Chunks of different readers are under way together, so that every rank's links and cores work at
once; a chunk that holds a piece of one array is received straight into it.
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
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.comm import Operation, exchange, interleaved
from deeppart.errors import FormatError, StorageError
from deeppart.mapped import bring_pages
from deeppart.model import Box
from deeppart.nodes import Bytes
from deeppart.plan.restart import Hop, Routes
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.parts import LoadedPart
from deeppart.recovery.tables import UNREAD, Holding, PartIndexView, Ranks, Tables
from deeppart.state.pieces import LeafPiece
from deeppart.state.restore import Scatter, Want, cut_patch

T = TypeVar("T")
#: Relayed chunks on their way at once.
WINDOW = 8
#: Relayed chunks have so many tags in turn, since they are passed on in the order in which they arrive. No rank has
#: chunks under way that are so many apart: two with one tag come in the order in which they went.
_TAGS = 1024
#: Of what is sent on request: chunks under way from one rank to another.
_ORDER_WINDOW = 4
_ORDER_TAG = 2050
_DIGEST_BITS = (1 << 61) - 1


class Failure(NamedTuple):
    """What went wrong on this rank.

    Attributes:
        error: as it was raised.
        part: the part whose source could not be read; None if something else went wrong.
    """

    error: Exception
    part: int | None = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of a part, and what this rank wants of its pieces, which are numbered."""

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
    def stretch(self) -> tuple[int, int]:
        return self.index.stretch(self.number)

    @property
    def nbytes(self) -> int:
        begin, end = self.stretch
        return end - begin

    def digest(self) -> int:
        """A number that is the same for ranks that want the same of the chunk, and never 0."""
        wants = [(piece, 0 if want.source is None else hash((want.source, want.target))) for piece, want in self.wants]
        return (hash(tuple(wants)) & _DIGEST_BITS) + 1

    def order(self) -> list[Any]:
        """For the rank that has read it: of which pieces which elements; all bytes where it says nothing else."""
        wants = [
            [number] if want.source is None else [number, want.source, want.target, want.itemsize]
            for number, want in self.wants
        ]
        return [self.index.part, self.number, wants]

    def ordered_bytes(self) -> int:
        """How many bytes it is sent of what it orders."""
        return sum(want.nbytes_of(self.pieces[number]) for number, want in self.wants)


class Delivery:
    """Brings the bytes of a recovered step to the arrays that want them; collective.

    A rank that cannot write or read something goes on to the end, since others wait for what it passes on, with bytes
    of no use if need be.
    """

    def __init__(self, ranks: Ranks, recovered: Recovered, tables: Tables) -> None:
        self._ranks, self._recovered, self._tables = ranks, recovered, tables
        self._routes = Routes(ranks.node_of, ranks.rank)
        self._parts = {index.part: index for index in tables.indexes}
        lengths = [len(index.readers) for index in tables.indexes]
        #: Numbers of the first chunks of the parts, if those of all parts are counted; and the places of all chunks in
        #: an order in which their readers take turns.
        self._firsts = [0, *accumulate(lengths)][:-1]
        self._places = _in_turns(np.concatenate([index.readers for index in tables.indexes]))
        self._what = f"restore of step {recovered.attempt.step}, distributing"

    def bring(self, scatter: Scatter) -> Failure | None:
        """Fill the arrays of all ranks; returns what went wrong first on this one, for all ranks to be told."""
        attempts = _Attempts()
        chunks = self._wanted(scatter, attempts)
        is_relayed = self._agree(chunks)
        relayed = [chunk for place, chunk in chunks if is_relayed[place]]
        others = [chunk for place, chunk in chunks if not is_relayed[place]]
        with _copiers(self._ranks.threads) as copy:
            self._ranks.finish(self._relaying(relayed, scatter, attempts, copy), self._what)
            orders: list[list[_Chunk]] = [[] for _ in range(self._ranks.comm.size)]
            for chunk in others:
                here = self._bytes_here(chunk)
                if here is None:
                    orders[chunk.reader].append(chunk)
                else:
                    copy(attempts.at(self._filling(chunk, scatter, here), chunk.index.part))
        if self._ranks.finish(self._ranks.comm.maximum(np.array([any(orders)], dtype=np.int64)), self._what).any():
            told = [json.dumps([chunk.order() for chunk in each]).encode() for each in orders]
            asked = [json.loads(text) for text in self._ranks.finish(exchange(self._ranks.comm, told), self._what)]
            self._ranks.finish(self._answering(orders, asked, scatter, attempts), self._what)
        return attempts.failure

    def _wanted(self, scatter: Scatter, attempts: _Attempts) -> list[tuple[int, _Chunk]]:
        """The chunks of which this rank wants something, by their places in the order of all that were read."""
        chunks: list[tuple[int, _Chunk]] = []
        for index, first in zip(self._tables.indexes, self._firsts, strict=True):
            for number, pieces, wants in scatter.chunks(index.part, index.pieces):
                if index.readers[number] == UNREAD:
                    attempts.failure = attempts.failure or _never_read(index.part, pieces[wants[0][0]].leaf)
                else:
                    chunks.append((int(self._places[first + number]), _Chunk(index, number, pieces, wants)))
        return sorted(chunks, key=itemgetter(0))

    def _agree(self, chunks: Sequence[tuple[int, _Chunk]]) -> npt.NDArray[np.bool_]:
        """By place, whether all ranks want the same of a chunk."""
        digests = np.zeros(len(self._places), dtype=np.int64)
        for place, chunk in chunks:
            digests[place] = chunk.digest()
        most = self._ranks.finish(self._ranks.comm.maximum(np.concatenate([digests, -digests])), self._what)
        highest, lowest = most[: len(digests)], -most[len(digests) :]
        return np.asarray((highest == lowest) & (lowest > 0))

    def _bytes_here(self, chunk: _Chunk) -> Callable[[], Bytes] | None:
        """Gives the raw bytes of a chunk, if they are in this rank's memory, or in its node's; None if not."""
        if chunk.reader == self._ranks.rank:
            return lambda: _chunk_in_memory(self._recovered.mine[chunk.index.part], chunk.number)
        if chunk.holding in self._tables.copies.mine:
            found = self._tables.copies.mine[chunk.holding]
            return lambda: found.stretch(*chunk.stretch)
        return None

    def _filling(self, chunk: _Chunk, scatter: Scatter, data: Callable[[], Bytes]) -> Callable[[], None]:
        """Puts a chunk that is here where it belongs; straight from a mate's file if it holds bytes of one leaf."""
        part, found = chunk.index.part, self._tables.copies.mine.get(chunk.holding)

        def fill() -> None:
            target = None if found is None else scatter.direct(part, chunk.pieces)
            if found is None or target is None or len(target) != chunk.nbytes:
                scatter.write(part, chunk.pieces, data())
            else:
                found.read_into(chunk.stretch[0], target)

        return fill

    # --- what all ranks want ---

    def _relaying(
        self,
        chunks: Sequence[_Chunk],
        scatter: Scatter,
        attempts: _Attempts,
        copy: Callable[[Callable[[], None]], object],
    ) -> Operation[None]:
        flying: deque[_Flight] = deque()
        for number, chunk in enumerate(chunks):
            while flying and (len(flying) >= WINDOW or number - flying[0].number >= _TAGS):
                yield _advanced(flying)
            here = self._bytes_here(chunk)
            hop = self._routes.hop(chunk.reader, number, seen=chunk.holding in self._tables.copies.on_nodes)
            if hop is not None:
                operation, land = self._start(chunk, hop, here, number % _TAGS, scatter, attempts)
                flying.append(_Flight(number, operation, land))
            if here is not None:
                copy(attempts.at(self._filling(chunk, scatter, here), chunk.index.part))
                if flying:
                    yield _advanced(flying)
        while flying:
            yield _advanced(flying)

    def _start(
        self,
        chunk: _Chunk,
        hop: Hop,
        here: Callable[[], Bytes] | None,
        tag: int,
        scatter: Scatter,
        attempts: _Attempts,
    ) -> tuple[Operation[None], Callable[[], None]]:
        """Begin to receive a chunk, or to send what is here; and what is to be done when that is over."""
        part = chunk.index.part
        if hop.source is None:
            sent = None if here is None else attempts.result(here, part)
            return self._sending(np.zeros(chunk.nbytes, dtype=np.uint8) if sent is None else sent, hop, tag), _no_more
        target = attempts.result(lambda: scatter.direct(part, chunk.pieces))
        data = np.empty(chunk.nbytes, dtype=np.uint8) if target is None else target
        receiving = self._ranks.comm.receive_into(data, hop.source, tag)
        land = attempts.at(lambda: scatter.write(part, chunk.pieces, data)) if target is None else _no_more
        return self._passing_on(receiving, data, hop, tag), land

    def _passing_on(self, receiving: Operation[None], data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        yield from receiving
        yield from self._sending(data, hop, tag)

    def _sending(self, data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        return interleaved([self._ranks.comm.send(data, target, tag) for target in hop.targets])

    # --- what some ranks want ---

    def _answering(
        self,
        orders: Sequence[list[_Chunk]],
        asked: Sequence[list[Any]],
        scatter: Scatter,
        attempts: _Attempts,
    ) -> Operation[None]:
        """Send what was asked for, and receive what this rank has ordered: one message for a chunk.

        Pairs of ranks take turns: in turn k every rank sends to the one k further, and receives from the one k before.
        So no rank has more than a few chunks under way, however many others there are, and none waits for a rank that
        waits for it.
        """
        size, rank = self._ranks.comm.size, self._ranks.rank
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sending = (
                (self._ranks.comm.send(self._cut(each, attempts), to, _ORDER_TAG), _no_more) for each in asked[to]
            )
            receiving = self._receiving(orders[source], source, scatter, attempts)
            yield from _side_by_side([sending, receiving])

    def _receiving(
        self, orders: list[_Chunk], source: int, scatter: Scatter, attempts: _Attempts
    ) -> Iterator[tuple[Operation[None], Callable[[], None]]]:
        for chunk in orders:
            target = attempts.result(partial(scatter.direct, chunk.index.part, chunk.pieces))
            data = np.empty(chunk.ordered_bytes(), dtype=np.uint8) if target is None else target
            receiving = self._ranks.comm.receive_into(data, source, _ORDER_TAG)
            yield receiving, _no_more if target is not None else attempts.at(_unpacking(chunk, data, scatter))

    def _cut(self, order: list[Any], attempts: _Attempts) -> Bytes:
        """What another rank wants of a chunk, one after the other."""
        part, chunk, wants = order
        pieces = self._parts[part].pieces.of(chunk)
        found = [(pieces[number], _want(rest)) for number, *rest in wants]
        packed = np.zeros(sum(want.nbytes_of(piece) for piece, want in found), dtype=np.uint8)

        def pack() -> None:
            data, at = _chunk_in_memory(self._recovered.mine[part], chunk), 0
            for piece, want in found:
                held = data[piece.at : piece.at + piece.length]
                for elements in _elements(want, piece, held):
                    target = packed[at : at + elements.nbytes].view(elements.dtype).reshape(elements.shape)
                    np.copyto(target, elements)
                    at += elements.nbytes

        attempts.result(pack, part)
        return packed


def _in_turns(readers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of chunks in an order in which their readers take turns, the same on all ranks."""
    by_reader = np.argsort(readers, kind="stable")
    ordered = readers[by_reader]
    turns = np.empty(len(readers), dtype=np.int64)
    turns[by_reader] = np.arange(len(readers)) - np.searchsorted(ordered, ordered)
    places = np.empty(len(readers), dtype=np.int64)
    places[np.lexsort((readers, turns))] = np.arange(len(readers))
    return places


def _want(told: list[Any]) -> Want:
    """What another rank wants, of an array of its own."""
    if not told:
        return Want(0, None, None, 1)
    source, target, itemsize = told
    return Want(0, _box(*source), _box(*target), itemsize)


def _box(offset: list[int], sizes: list[int]) -> Box:
    return Box(tuple(offset), tuple(sizes))


def _elements(want: Want, piece: LeafPiece, held: Bytes) -> Iterator[Any]:
    """What is wanted of the bytes of a piece, array by array."""
    if want.source is None:
        yield held
    else:
        for patch in want.of(piece):
            yield cut_patch(held, patch, want.itemsize)


def _unpacking(chunk: _Chunk, data: Bytes, scatter: Scatter) -> Callable[[], None]:
    """Puts what has come one after the other where it belongs."""

    def unpack() -> None:
        at = 0
        for number, want in chunk.wants:
            at = scatter.fill_packed(want, chunk.pieces[number], data, at)

    return unpack


def _never_read(part: int, leaf: int) -> Failure:
    """The error for a leaf that is to be filled from bytes that were left out as not asked for."""
    error = StorageError(
        "bytes that a restore needs were left out when the step was read; this is a fault of the library",
        found=f"leaf {leaf} of part {part}",
        todo="report it; restore the whole state meanwhile, without keys= and exclude=",
    )
    return Failure(error)


class _Attempts:
    """What one rank does for itself while others wait for what it passes on: nothing is raised before the end.

    Attributes:
        failure: what went wrong first, or None. Any thread may set it; a later one may take the place of an earlier.
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None

    def at(self, do: Callable[[], None], part: int | None = None) -> Callable[[], None]:
        """A call that does this, unless something has failed; and takes note if it fails."""
        return lambda: self.result(do, part)

    def result(self, do: Callable[[], T], part: int | None = None) -> T | None:
        """What this returns; None if it fails, or something has failed before."""
        if self.failure is None:
            try:
                return do()
            except (StorageError, FormatError) as error:
                self.failure = Failure(error, part)
            except Exception as error:  # of whatever kind: other ranks wait for what comes after it
                self.failure = Failure(error)
        return None


def _chunk_in_memory(loaded: LoadedPart, chunk: int) -> Bytes:
    """A chunk that this rank has read; of a file that was cut since, an error where an access would end the process."""
    data = loaded.chunk(chunk)
    if loaded.place is not None:
        bring_pages(data, loaded.place.path)
    return data


@dataclass(slots=True)
class _Flight:
    """A chunk on its way to this rank, and on from it."""

    number: int
    operation: Operation[None]
    land: Callable[[], None]
    over: bool = False


def _advanced(flying: deque[_Flight]) -> bool:
    """Go on with all that is on its way; true if any of it got further. It leaves in the order in which it began."""
    moved = False
    for flight in flying:
        if not flight.over:
            try:
                moved = next(flight.operation) or moved
            except StopIteration:
                flight.land()
                flight.over = moved = True
    while flying and flying[0].over:
        flying.popleft()
    return moved


def _no_more() -> None:
    """Nothing is left to be done."""


@contextmanager
def _copiers(threads: int) -> Iterator[Callable[[Callable[[], None]], object]]:
    """Gives a function that makes copies: in the calling thread, or in several, which have made them all at the end."""
    if threads < 2:
        yield lambda make: make()
        return
    with ThreadPoolExecutor(threads, "deeppart-copy") as pool:
        under_way: list[Future[None]] = []
        try:
            yield lambda make: under_way.append(pool.submit(make))
            for each in under_way:
                each.result()  # bounded: copies in memory, whose errors come out here
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _side_by_side(streams: Sequence[Iterator[tuple[Operation[None], Callable[[], None]]]]) -> Operation[None]:
    """Advance streams of transfers, a few of each at once, in order."""
    flying: list[deque[tuple[Operation[None], Callable[[], None]]]] = [deque() for _ in streams]
    is_open = [True] * len(streams)
    while any(is_open) or any(flying):
        moved = False
        for number, stream in enumerate(streams):
            while is_open[number] and len(flying[number]) < _ORDER_WINDOW:
                following = next(stream, None)
                if following is None:
                    is_open[number] = False
                else:
                    flying[number].append(following)
                    moved = True
            moved = _advanced_in_order(flying[number]) or moved
        if any(is_open) or any(flying):
            yield moved


def _advanced_in_order(flying: deque[tuple[Operation[None], Callable[[], None]]]) -> bool:
    """Go on with transfers; true if the first is over, and with it taken out."""
    moved = False
    while flying:
        operation, land = flying[0]
        try:
            return next(operation) or moved
        except StopIteration:
            land()
            flying.popleft()
            moved = True
    return moved
