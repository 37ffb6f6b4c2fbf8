"""Deliver boxes: to each rank the elements of tensors that it has shards of, and no others.

Each rank works out what it wants of which chunk. What lies in its own memory, or in that of its node, it copies. For
the rest it asks the ranks that have read it; these send the elements that were asked for, one message for a chunk.
Pairs of ranks take turns: in turn k every rank sends to the one k further, and receives from the one k before. So no
rank has more than a few chunks under way, however many others there are, and none waits for a rank that waits for it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppart.comm.base import Operation
from deeppart.comm.exchange import exchange
from deeppart.model.boxes import Box
from deeppart.nodes.exchange.memory import Bytes
from deeppart.recovery.distribute import (
    Attempts,
    Failure,
    bytes_here,
    chunk_in_memory,
    copiers,
    never_read,
    nothing_left,
)
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered
from deeppart.recovery.tables import UNREAD, PartIndexView, Tables
from deeppart.state.restore.scatter import BoxScatter, LeafPiece, Wanted, cut_patch, patch_bytes, patches

#: Chunks under way from one rank to another.
_WINDOW = 4
_TAG = 2050


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

    A rank that cannot read or write something goes on to the end, with bytes of no use if need be, as in
    :class:`~deeppart.recovery.distribute.Distributor`.
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
            yield self._ranks.comm.send(data, to, _TAG), nothing_left

    def _receiving(
        self, orders: list[_Order], source: int, scatter: BoxScatter
    ) -> Iterator[tuple[Operation[None], Callable[[], None]]]:
        for order in orders:
            pieces = self._parts[order.part].pieces[order.chunk]
            data = np.empty(_length(pieces, order.wants), dtype=np.uint8)
            receiving = self._ranks.comm.receive_into(data, source, _TAG)
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
            while is_open[number] and len(flying[number]) < _WINDOW:
                following = next(stream, None)
                if following is None:
                    is_open[number] = False
                else:
                    flying[number].append(following)
                    moved = True
            moved = _advanced(flying[number]) or moved
        if any(is_open) or any(flying):
            yield moved


def _advanced(flying: deque[tuple[Operation[None], Callable[[], None]]]) -> bool:
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
