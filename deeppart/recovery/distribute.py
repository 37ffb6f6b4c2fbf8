"""Distribute: from verified parts to the arrays of all ranks, whole leaves and boxes of sharded ones.

Where the ranks of a node find a part in the node's memory, each copies from there. Elsewhere its chunks are sent, once
to each node and on to its ranks (:mod:`deeppart.plan.restart.reading`); per-rank chunks go to the one rank they belong
to. Chunks of different readers are under way together, so that every rank's links and cores work at once; a chunk that
holds a piece of one array is received straight into it. All ranks walk the same schedule, computed from the tables.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from deeppart.comm import Operation, exchange, interleaved
from deeppart.errors import FormatError, StorageError
from deeppart.model import Box
from deeppart.nodes import Bytes
from deeppart.plan.restart import Hop, Routes
from deeppart.recovery.candidates import Recovered
from deeppart.recovery.parts import LoadedPart
from deeppart.recovery.tables import UNREAD, Holding, PartIndexView, Ranks, Tables
from deeppart.state.restore.scatter import BoxScatter, LeafPiece, Scatter, Wanted, cut_patch, patch_bytes, patches
from deeppart.storage.mapped import bring_pages

T = TypeVar("T")
#: Chunks on their way at once.
WINDOW = 8
#: Messages of chunks that go to all have so many tags in turn, since they are passed on in the order in which they
#: arrive. No rank has chunks under way that are so many apart: two with one tag come in the order in which they went.
_TAGS = 1024
_OWN_TAG = _TAGS
#: Of boxes: chunks under way from one rank to another.
_BOX_WINDOW = 4
_BOX_TAG = 2050


@dataclass(frozen=True, slots=True)
class _Item:
    """A chunk to be delivered: whose, which, and to where."""

    index: PartIndexView
    chunk: int
    scatter: Scatter

    @property
    def reader(self) -> int:
        return self.index.readers[self.chunk]

    @property
    def holding(self) -> Holding:
        return self.index.part, self.reader

    @property
    def pieces(self) -> list[LeafPiece]:
        return self.index.pieces[self.chunk]

    @property
    def is_wanted(self) -> bool:
        """True if any of its leaves is to be filled."""
        return any(self.scatter.wants(piece.leaf) for piece in self.pieces)


@dataclass(slots=True)
class _Flight:
    """A chunk on its way to this rank, and on from it."""

    number: int
    operation: Operation[None]
    land: Callable[[], None]
    over: bool = False


class Distributor:
    """Brings the bytes of a recovered step to where they belong; every method is collective.

    A rank that cannot write or read something goes on to the end, since others wait for what it passes on, with bytes
    of no use if need be. The methods return what went wrong first, for all ranks to be told; None if nothing did.
    """

    def __init__(self, ranks: Ranks, recovered: Recovered, tables: Tables) -> None:
        self._ranks, self._recovered, self._tables = ranks, recovered, tables
        self._routes = Routes(ranks.node_of, ranks.rank)

    def shared(self, scatter: Scatter) -> Failure | None:
        """Fill the replicated leaves of all ranks."""
        items = (_Item(*each, scatter) for each in self._in_turns(per_rank=False))
        failure = self._deliver((item for item in items if item.is_wanted), self._hop_to_all)
        return failure or self._unread(lambda part: scatter, per_rank=False)

    def own(self, scatter: Scatter, skipped: Callable[[int], frozenset[int]]) -> Failure | None:
        """Give every rank the per-rank leaves of the part it saved itself; the world is as large as at the save."""
        left_out = {index.part: skipped(index.part) for index in self._tables.indexes}
        items = (
            item
            for item in (_Item(*each, scatter) for each in self._in_turns(per_rank=True))
            if any(piece.leaf not in left_out[item.index.part] for piece in item.pieces)
        )
        failure = self._deliver(items, self._hop_to_owner, only_owner=True)
        return failure or self._unread(lambda part: scatter if part == self._ranks.rank else None, per_rank=True)

    def all_own(self, parts: Iterable[int], scatters: Callable[[int], Scatter]) -> Failure | None:
        """Give every rank the per-rank leaves of some parts."""
        asked = set(parts)
        items = (
            _Item(index, chunk, scatters(index.part))
            for index in self._tables.indexes
            if index.part in asked
            for chunk, own in enumerate(index.per_rank)
            if own and index.readers[chunk] != UNREAD
        )
        failure = self._deliver((item for item in items if item.is_wanted), self._hop_to_all)
        return failure or self._unread(lambda part: scatters(part) if part in asked else None, per_rank=True)

    def _unread(self, scatter_of: Callable[[int], Scatter | None], *, per_rank: bool) -> Failure | None:
        """An error if anything was to be filled from bytes that no rank has read: it would keep what it had."""
        for index in self._tables.indexes:
            scatter = scatter_of(index.part)
            if scatter is None:
                continue
            for chunk in (chunk for chunk in index.unread() if index.per_rank[chunk] == per_rank):
                for piece in index.pieces[chunk]:
                    if scatter.wants(piece.leaf):
                        return never_read(index.part, piece.leaf)
        return None

    def _in_turns(self, *, per_rank: bool) -> Iterator[tuple[PartIndexView, int]]:
        """Chunks of all parts, the readers taking turns."""
        queues: dict[int, deque[tuple[PartIndexView, int]]] = {}
        for index in self._tables.indexes:
            for chunk, own in enumerate(index.per_rank):
                if own == per_rank and index.readers[chunk] != UNREAD:
                    queues.setdefault(index.readers[chunk], deque()).append((index, chunk))
        while any(queues.values()):
            for queue in queues.values():
                if queue:
                    yield queue.popleft()

    def _deliver(
        self, items: Iterator[_Item], hop_of: Callable[[_Item, int], Hop | None], *, only_owner: bool = False
    ) -> Failure | None:
        what = f"restore of step {self._recovered.attempt.step}, distributing"
        attempts = Attempts()
        with copiers(self._ranks.threads) as copy:
            self._ranks.finish(self._delivering(items, hop_of, attempts, copy, only_owner), what)
        return attempts.failure

    def _delivering(
        self,
        items: Iterator[_Item],
        hop_of: Callable[[_Item, int], Hop | None],
        attempts: Attempts,
        copy: Callable[[Callable[[], None]], object],
        only_owner: bool,
    ) -> Operation[None]:
        flying: deque[_Flight] = deque()
        for number, item in enumerate(items):
            while flying and (len(flying) >= WINDOW or number - flying[0].number >= _TAGS):
                yield _advanced(flying)
            tag = _OWN_TAG if only_owner else number % _TAGS
            here = bytes_here(self._ranks.rank, self._recovered, self._tables, item.index, item.chunk)
            hop = hop_of(item, number)
            if hop is not None:
                operation, land = self._start(item, hop, here, tag, attempts)
                flying.append(_Flight(number, operation, land))
            if here is not None and (not only_owner or item.index.part == self._ranks.rank):
                copy(attempts.at(self._filling(item, here), item.index.part))
                if flying:
                    yield _advanced(flying)
        while flying:
            yield _advanced(flying)

    def _filling(self, item: _Item, data: Callable[[], Bytes]) -> Callable[[], None]:
        """Puts a chunk that is here where it belongs; straight from a mate's file if it holds bytes of one leaf."""
        found = self._tables.copies.mine.get(item.holding)
        if found is None or len(item.pieces) != 1:
            return _writing(item, data)

        def fill() -> None:
            target = item.scatter.direct(item.pieces)
            if target is None or len(target) != item.index.lengths[item.chunk]:
                item.scatter.write(item.pieces, data())
            else:
                found.read_into(item.index.starts[item.chunk], target)

        return fill

    def _hop_to_all(self, item: _Item, number: int) -> Hop | None:
        seen = item.holding in self._tables.copies.on_nodes
        return self._routes.hop(item.reader, number, seen=seen)

    def _hop_to_owner(self, item: _Item, _: int) -> Hop | None:
        reader, owner, rank = item.reader, item.index.part, self._ranks.rank
        node_of = self._ranks.node_of
        if reader == owner or rank not in (reader, owner):
            return None
        if item.holding in self._tables.copies.on_nodes and node_of[reader] == node_of[owner]:
            return None
        return Hop(None, (owner,)) if rank == reader else Hop(reader, ())

    def _start(
        self, item: _Item, hop: Hop, here: Callable[[], Bytes] | None, tag: int, attempts: Attempts
    ) -> tuple[Operation[None], Callable[[], None]]:
        """Begin to receive a chunk, or to send what is here; and what is to be done when that is over."""
        nbytes = item.index.lengths[item.chunk]
        if hop.source is None:
            sent = None if here is None else attempts.result(here, item.index.part)
            return self._sending(np.zeros(nbytes, dtype=np.uint8) if sent is None else sent, hop, tag), nothing_left
        target = attempts.result(lambda: item.scatter.direct(item.pieces))
        data = np.empty(nbytes, dtype=np.uint8) if target is None else target
        receiving = self._ranks.comm.receive_into(data, hop.source, tag)
        land = attempts.at(_writing(item, lambda: data)) if target is None else nothing_left
        return self._passing_on(receiving, data, hop, tag), land

    def _passing_on(self, receiving: Operation[None], data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        yield from receiving
        yield from self._sending(data, hop, tag)

    def _sending(self, data: Bytes, hop: Hop, tag: int) -> Operation[None]:
        return interleaved([self._ranks.comm.send(data, target, tag) for target in hop.targets])


def never_read(part: int, leaf: int) -> Failure:
    """The error for a leaf that is to be filled from bytes that were left out as not asked for."""
    error = StorageError(
        "bytes that a restore needs were left out when the step was read; this is a fault of the library",
        found=f"leaf {leaf} of part {part}",
        todo="report it; restore the whole state meanwhile, without keys= and exclude=",
    )
    return Failure(error)


class Failure(NamedTuple):
    """What went wrong on this rank.

    Attributes:
        error: as it was raised.
        part: the part whose source could not be read; None if something else went wrong.
    """

    error: Exception
    part: int | None = None


class Attempts:
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


def bytes_here(
    rank: int, recovered: Recovered, tables: Tables, index: PartIndexView, chunk: int
) -> Callable[[], Bytes] | None:
    """Gives the raw bytes of a chunk, if they are in this rank's memory, or in its node's; None if they are not."""
    reader = index.readers[chunk]
    if reader == rank:
        return lambda: chunk_in_memory(recovered.mine[index.part], chunk)
    if (index.part, reader) in tables.copies.mine:
        found, start = tables.copies.mine[index.part, reader], index.starts[chunk]
        return lambda: found.stretch(start, start + index.lengths[chunk])
    return None


def chunk_in_memory(loaded: LoadedPart, chunk: int) -> Bytes:
    """A chunk that this rank has read; of a file that was cut since, an error where an access would end the process."""
    data = loaded.chunk(chunk)
    if loaded.place is not None:
        bring_pages(data, loaded.place.path)
    return data


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


def _writing(item: _Item, data: Callable[[], Bytes]) -> Callable[[], None]:
    return lambda: item.scatter.write(item.pieces, data())


def nothing_left() -> None:
    """Nothing is left to be done."""


@contextmanager
def copiers(threads: int) -> Iterator[Callable[[Callable[[], None]], object]]:
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


@dataclass(frozen=True, slots=True)
class _Order:
    """What one rank wants of a chunk that another one has read.

    Attributes:
        part, chunk: which chunk.
        wants: of its pieces, by number: the box of the tensor that the live array has, and what to do with the bytes.
    """

    part: int
    chunk: int
    wants: list[tuple[int, Wanted]]

    def told(self) -> list[Any]:
        """For the other rank: for each piece the box that it is of, the box that is wanted, and bytes of an element."""
        wants = [[number, want.source.box, want.live.box, want.itemsize] for number, want in self.wants]
        return [self.part, self.chunk, wants]


class BoxDelivery:
    """Brings elements to the boxes that want them; collective.

    Each rank works out what it wants of which chunk. What lies in its own memory, or in that of its node, it copies.
    For the rest it asks the ranks that have read it; these send the elements that were asked for, one message for a
    chunk. Pairs of ranks take turns: in turn k every rank sends to the one k further, and receives from the one k
    before. So no rank has more than a few chunks under way, however many others there are, and none waits for a rank
    that waits for it. A rank that cannot read or write something goes on to the end, as in :class:`Distributor`.
    """

    def __init__(self, ranks: Ranks, recovered: Recovered, tables: Tables) -> None:
        self._ranks, self._recovered, self._tables = ranks, recovered, tables
        self._parts = {index.part: index for index in tables.indexes}
        self._attempts = Attempts()

    def bring(self, scatter: BoxScatter) -> Failure | None:
        """Fill the boxes that this rank wants."""
        what = f"restore of step {self._recovered.attempt.step}, boxes of sharded tensors"
        orders: list[list[_Order]] = [[] for _ in range(self._ranks.comm.size)]
        with copiers(self._ranks.threads) as copy:
            for index in self._tables.indexes:
                for chunk, wants in _wanted_of(index, scatter):
                    if index.readers[chunk] == UNREAD:
                        leaf = index.pieces[chunk][wants[0][0]].leaf
                        self._attempts.failure = self._attempts.failure or never_read(index.part, leaf)
                        continue
                    here = bytes_here(self._ranks.rank, self._recovered, self._tables, index, chunk)
                    if here is None:
                        orders[index.readers[chunk]].append(_Order(index.part, chunk, wants))
                    else:
                        copy(self._attempts.at(_filling(index.pieces[chunk], wants, here, scatter), index.part))
        told = [json.dumps([order.told() for order in each]).encode() for each in orders]
        asked = [json.loads(text) for text in self._ranks.finish(exchange(self._ranks.comm, told), what)]
        self._ranks.finish(self._turns(orders, asked, scatter), what)
        return self._attempts.failure

    def _turns(
        self, orders: Sequence[list[_Order]], asked: Sequence[list[Any]], scatter: BoxScatter
    ) -> Operation[None]:
        size, rank = self._ranks.comm.size, self._ranks.rank
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            sending = self._sending(asked[to], to)
            receiving = self._receiving(orders[source], source, scatter)
            yield from _side_by_side([sending, receiving])

    def _sending(self, asked: list[Any], to: int) -> Iterator[tuple[Operation[None], Callable[[], None]]]:
        for part, chunk, wants in asked:
            data = self._cut(part, chunk, wants)
            yield self._ranks.comm.send(data, to, _BOX_TAG), nothing_left

    def _receiving(
        self, orders: list[_Order], source: int, scatter: BoxScatter
    ) -> Iterator[tuple[Operation[None], Callable[[], None]]]:
        for order in orders:
            pieces = self._parts[order.part].pieces[order.chunk]
            data = np.empty(_length(pieces, order.wants), dtype=np.uint8)
            receiving = self._ranks.comm.receive_into(data, source, _BOX_TAG)
            yield receiving, self._attempts.at(_unpacking(pieces, order.wants, data, scatter))

    def _cut(self, part: int, chunk: int, wants: list[Any]) -> Bytes:
        """The elements that another rank wants of a chunk, one after the other."""
        pieces = self._parts[part].pieces[chunk]
        found = [
            (pieces[number], patch, itemsize)
            for number, source, target, itemsize in wants
            for patch in patches(_box(source), pieces[number].start, pieces[number].length, itemsize, _box(target))
        ]
        packed = np.zeros(sum(patch_bytes(patch, itemsize) for _, patch, itemsize in found), dtype=np.uint8)

        def pack() -> None:
            data, at = chunk_in_memory(self._recovered.mine[part], chunk), 0
            for piece, patch, itemsize in found:
                elements = cut_patch(data[piece.at : piece.at + piece.length], patch, itemsize)
                target = packed[at : at + elements.nbytes].view(elements.dtype).reshape(elements.shape)
                np.copyto(target, elements)
                at += elements.nbytes

        self._attempts.result(pack, part)
        return packed


def _wanted_of(index: PartIndexView, scatter: BoxScatter) -> Iterator[tuple[int, list[tuple[int, Wanted]]]]:
    """The chunks of a part of which anything is wanted, and what of each of their pieces."""
    leaves = scatter.leaves(index.part)
    if not leaves:
        return
    for chunk, pieces in enumerate(index.pieces):
        wants = [
            (number, want)
            for number, piece in enumerate(pieces)
            if piece.leaf in leaves
            for want in scatter.wants_of(index.part, piece)
        ]
        if wants:
            yield chunk, wants


def _filling(
    pieces: list[LeafPiece], wants: list[tuple[int, Wanted]], data: Callable[[], Bytes], scatter: BoxScatter
) -> Callable[[], None]:
    """Puts what is wanted of a chunk that is here where it belongs."""

    def fill() -> None:
        held = data()
        for number, want in wants:
            piece = pieces[number]
            scatter.fill(want, piece, held[piece.at : piece.at + piece.length])

    return fill


def _unpacking(
    pieces: list[LeafPiece], wants: list[tuple[int, Wanted]], data: Bytes, scatter: BoxScatter
) -> Callable[[], None]:
    """Puts elements that have come one after the other where they belong."""

    def unpack() -> None:
        at = 0
        for number, want in wants:
            at = scatter.fill_packed(want, pieces[number], data, at)

    return unpack


def _box(told: list[list[int]]) -> Box:
    offset, sizes = told
    return Box(tuple(offset), tuple(sizes))


def _length(pieces: list[LeafPiece], wants: list[tuple[int, Wanted]]) -> int:
    return sum(want.nbytes_of(pieces[number]) for number, want in wants)


def _side_by_side(streams: Sequence[Iterator[tuple[Operation[None], Callable[[], None]]]]) -> Operation[None]:
    """Advance streams of transfers, a few of each at once, in order."""
    flying: list[deque[tuple[Operation[None], Callable[[], None]]]] = [deque() for _ in streams]
    is_open = [True] * len(streams)
    while any(is_open) or any(flying):
        moved = False
        for number, stream in enumerate(streams):
            while is_open[number] and len(flying[number]) < _BOX_WINDOW:
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
