"""Computes blocks of a parity set, with the transfers: parity from parts, and lost parts from the remaining blocks.

A step is one stripe of one row: all of its wanted blocks are computed from the same k others on one rank. The ranks
that read these send them to it, and it sends the results to the ranks that want them. Blocks beyond the end of a part
are zeros, and are not sent.

Steps are grouped in rounds. Every rank begins a round, computes one that was begun earlier, and finishes one that was
computed earlier. There are no circular waits: before a rank waits for anything of a later round, it has begun all
rounds that others wait to compute, and computed all that others wait to finish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import xxhash

from deeppart.comm import Comm, Operation, interleaved
from deeppart.model import ParityIdentity
from deeppart.nodes.erasure import ReedSolomon
from deeppart.nodes.exchange.memory import Arena, Bytes, paced
from deeppart.part import stripes_of
from deeppart.plan.redundancy import ROWS_AT_ONCE
from deeppart.storage import RateLimit

#: Message tags of results, and of inputs, to which their row of the code is added: inputs are sent in the order of
#: their files. Subclasses may use lower tags.
_RESULT_TAG, _INPUT_TAG = 2, 3
#: Rounds that are begun before the one being computed; as many more are computed but not finished.
_ROUNDS_AHEAD = ROWS_AT_ONCE // 2
#: Bytes that are computed and digested at once, while they are in the processor's caches.
SLICE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a row, as input or result.

    Attributes:
        kind, place, index: "data" or "parity", the member of the set, and the number of the block in its row.
        rank: the rank that reads it (input) or wants it (result).
        which: number of the file, if the member has several.
    """

    kind: str
    place: int
    index: int
    rank: int
    which: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The wanted blocks of one stripe.

    Attributes:
        row: number of the row.
        inputs: k blocks; or, for a single result, one good copy of it.
        results: the blocks computed from them.
        computer: the rank that computes them.
    """

    row: int
    inputs: tuple[Block, ...]
    results: tuple[Block, ...]
    computer: int


@dataclass(frozen=True, slots=True)
class _Round:
    """A round in progress on one rank.

    Attributes:
        computing: what this rank computes: (step, memory of its inputs, memory of its results).
        coming: transfers that have to end before that.
        rest: the other transfers.
    """

    steps: Sequence[Step]
    computing: list[tuple[Step, list[Bytes], list[Bytes]]] = field(default_factory=list)
    coming: list[Operation[None]] = field(default_factory=list)
    rest: list[Operation[None]] = field(default_factory=list)


def memory_lengths(members: int, block_bytes: int) -> list[int]:
    """Lengths in bytes of the blocks in progress at once: for each round, twice the blocks of a stripe."""
    return [block_bytes] * (ROWS_AT_ONCE * 2 * members)


class Coding(ABC):
    """One rank's share of computing blocks of one set. Subclasses define where blocks are read from and stored.

    In the steps of a round, a rank may read, compute and receive at most twice as many blocks as a stripe has.
    """

    #: Whether blocks are digested for :meth:`computed`.
    digesting = False

    def __init__(self, comm: Comm, identity: ParityIdentity, arena: Arena, limit: RateLimit | None = None) -> None:
        self._comm, self._identity, self._arena, self._limit = comm, identity, arena, limit
        self._stripes = stripes_of(identity)
        self._code = ReedSolomon(self._stripes.data_blocks, self._stripes.tolerate)

    @abstractmethod
    def read(self, row: int, block: Block, memory: Bytes) -> Bytes:
        """Read a block, into ``memory`` or in place. The blocks of a file are read in order.

        Must not raise, because other ranks wait for the block.
        """

    @abstractmethod
    def room(self, row: int, block: Block, memory: Bytes) -> Bytes:
        """Memory for a block that this rank wants; ``memory`` may be used until the round ends."""

    def computed(self, step: Step, digests: list[bytes]) -> None:  # noqa: B027 - nothing by default
        """Called after this rank has computed a step, with the digests of inputs and results."""

    def ended(self, steps: Sequence[Step]) -> None:  # noqa: B027 - nothing by default
        """Called when this rank has everything that it wants of a round."""

    def run(self, rounds: Iterable[Sequence[Step]]) -> Operation[None]:
        """Run this rank's share of all rounds, which are the same on all ranks."""
        lent = self._arena.cut(memory_lengths(self._stripes.members, self._stripes.block_bytes))
        begun: list[_Round] = []
        for number, steps in enumerate(rounds):
            if len(begun) == ROWS_AT_ONCE:
                yield from self._finish(begun.pop(0))
            begun.append((yield from self._begin(steps, iter(lent[number % ROWS_AT_ONCE :: ROWS_AT_ONCE]))))
            if len(begun) > _ROUNDS_AHEAD:
                yield from self._compute(begun[-1 - _ROUNDS_AHEAD])
        for each in begun[-_ROUNDS_AHEAD:]:
            yield from self._compute(each)
        for each in begun:
            yield from self._finish(each)
        self._arena.give_back()

    def filled(self, row: int, block: Block) -> int:
        """The number of bytes of a block before the end of its part."""
        if block.kind == "parity":
            return self._stripes.length(row)
        return self._stripes.filled(row, block.index, self._identity.members[block.place].nbytes)

    def _begin(self, steps: Sequence[Step], memory: Iterator[Bytes]) -> Operation[_Round]:
        """Begin to receive what this rank needs for these steps, then to send its inputs for steps of other ranks."""
        me, begun = self._comm.rank, _Round(steps)
        for step in steps:
            length = self._stripes.length(step.row)
            if step.computer == me:
                blocks = [self._input(step.row, each, next(memory)[:length], begun) for each in step.inputs]
                rooms = [
                    self.room(step.row, each, space) if each.rank == me else space
                    for each, space in ((each, next(memory)[:length]) for each in step.results)
                ]
                begun.computing.append((step, blocks, rooms))
                continue
            for each in step.results:
                if each.rank == me:
                    room = self.room(step.row, each, next(memory)[:length])
                    begun.rest.append(self._comm.receive_into(room, step.computer, _RESULT_TAG))
        sends = [(step, each) for step in steps for each in step.inputs if each.rank == me != step.computer]
        for step, each in sorted(sends, key=lambda pair: (pair[0].row, pair[1].index)):
            if filled := self.filled(step.row, each):
                block = self.read(step.row, each, next(memory)[: self._stripes.length(step.row)])
                yield from paced(self._limit, filled)
                tag = _INPUT_TAG + self._code_row(each)
                begun.rest.append(self._comm.send(block[:filled], step.computer, tag))
        return begun

    def _input(self, row: int, block: Block, memory: Bytes, begun: _Round) -> Bytes:
        """The memory of an input of this rank's computation, into which it may still have to be received."""
        filled = self.filled(row, block)
        if filled and block.rank == self._comm.rank:
            return self.read(row, block, memory)
        memory[filled:] = 0
        if filled:
            tag = _INPUT_TAG + self._code_row(block)
            begun.coming.append(self._comm.receive_into(memory[:filled], block.rank, tag))
        return memory

    def _compute(self, begun: _Round) -> Operation[None]:
        """Compute this rank's steps of a round, and send the results."""
        yield from interleaved(begun.coming)
        yield True
        for step, blocks, rooms in begun.computing:
            self._do(step, blocks, rooms)
            for room, result in zip(rooms, step.results, strict=True):
                if result.rank != self._comm.rank:
                    yield from paced(self._limit, room.size)
                    begun.rest.append(self._comm.send(room, result.rank, _RESULT_TAG))

    def _finish(self, begun: _Round) -> Operation[None]:
        """Wait until all transfers of a round have ended."""
        yield from interleaved(begun.rest)
        self.ended(begun.steps)
        yield True

    def _do(self, step: Step, blocks: list[Bytes], rooms: list[Bytes]) -> None:
        rows, wanted = list(map(self._code_row, step.inputs)), list(map(self._code_row, step.results))
        if rows == wanted:
            rooms[0][:] = blocks[0]
            return
        hashers = [xxhash.xxh3_128() for _ in (*rows, *wanted)] if self.digesting else []
        for at in range(0, self._stripes.length(step.row), SLICE_BYTES):
            ins = [block[at : at + SLICE_BYTES] for block in blocks]
            outs = [room[at : at + SLICE_BYTES] for room in rooms]
            self._code.rebuild(ins, rows, wanted, outs)
            for hasher, piece in zip(hashers, (*ins, *outs), strict=False):
                hasher.update(piece.data)
        self.computed(step, [hasher.digest() for hasher in hashers])

    def _code_row(self, block: Block) -> int:
        """The row of the code for a block: data blocks first, then parity."""
        return block.index if block.kind == "data" else self._stripes.data_blocks + block.index
