"""Blocks of a parity set on their way, and the arithmetic: parity of the parts, and lost parts from the rest.

A step is one stripe of one row: all blocks of it that are wanted are computed from the same k others, on one rank. The
ranks that read these send them to it, and it sends the results to the ranks that want them. What lies behind the end of
a part is zeros, and is not sent.

Steps are grouped in rounds: all ranks begin one, compute one that was begun earlier, and finish one that was computed
earlier. No ranks wait for each other in a circle, as the others have begun what a rank waits for to compute, and have
computed what it waits for to finish, before they wait for anything themselves that comes later.
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

#: Of those computed, and of the blocks that these are computed from, to which their row of the code is added: they are
#: sent in the order of their files. Lower tags are free for subclasses.
_RESULT_TAG, _INPUT_TAG = 2, 3
#: Begun before the one that is computed; as many more are computed, and not finished.
_ROUNDS_AHEAD = ROWS_AT_ONCE // 2
#: Computed and digested so many bytes at a time, while they are in the processor's caches.
SLICE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a row, to use or to compute.

    Attributes:
        kind, place, index: "data" or "parity" of which member of the set, and which one of its row.
        rank: that reads it, or that wants it.
        which: of the member's files, where there are several.
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
        row: which row of the parts.
        inputs: k blocks; or, for a single result, the one good copy of it.
        results: what is computed of them.
        computer: the rank that does it.
    """

    row: int
    inputs: tuple[Block, ...]
    results: tuple[Block, ...]
    computer: int


@dataclass(frozen=True, slots=True)
class _Round:
    """Steps under way, as seen by one rank.

    Attributes:
        computing: what this rank computes: (step, the blocks of its inputs, those of its results).
        coming: exchanges that have to end before that.
        rest: the others.
    """

    steps: Sequence[Step]
    computing: list[tuple[Step, list[Bytes], list[Bytes]]] = field(default_factory=list)
    coming: list[Operation[None]] = field(default_factory=list)
    rest: list[Operation[None]] = field(default_factory=list)


def memory_lengths(members: int, block_bytes: int) -> list[int]:
    """Of the blocks that are under way at once, in bytes: in every round twice those of a stripe."""
    return [block_bytes] * (ROWS_AT_ONCE * 2 * members)


class Coding(ABC):
    """One rank's share of computing blocks of one set; subclasses know where blocks come from and go to.

    For the steps of a round, a rank may read, compute and receive no more than twice as many blocks as a stripe has.
    """

    #: Whether blocks are digested for :meth:`computed`.
    digesting = False

    def __init__(self, comm: Comm, identity: ParityIdentity, arena: Arena, limit: RateLimit | None = None) -> None:
        self._comm, self._identity, self._arena, self._limit = comm, identity, arena, limit
        self._stripes = stripes_of(identity)
        self._code = ReedSolomon(self._stripes.data_blocks, self._stripes.tolerate)

    @abstractmethod
    def read(self, row: int, block: Block, memory: Bytes) -> Bytes:
        """A block that this rank reads, in ``memory`` or where it lies. Those of a file are read in their order in it.

        Not to raise: others wait for the block.
        """

    @abstractmethod
    def room(self, row: int, block: Block, memory: Bytes) -> Bytes:
        """Where a block that this rank wants comes to lie; ``memory`` is there for it until the round ends."""

    def computed(self, step: Step, digests: list[bytes]) -> None:  # noqa: B027 - nothing by default
        """A step has been done on this rank, of inputs and with results that have these digests."""

    def ended(self, steps: Sequence[Step]) -> None:  # noqa: B027 - nothing by default
        """All that this rank wants of a round has come."""

    def run(self, rounds: Iterable[Sequence[Step]]) -> Operation[None]:
        """Do this rank's share of all rounds, which are the same on all ranks."""
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
        """How many bytes of a block are not behind the end of its part."""
        if block.kind == "parity":
            return self._stripes.length(row)
        return self._stripes.filled(row, block.index, self._identity.members[block.place].nbytes)

    def _begin(self, steps: Sequence[Step], memory: Iterator[Bytes]) -> Operation[_Round]:
        """Ask for what this rank gets for some steps; then, send what it has for those that others compute."""
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
        """Where a block lies, or will when it has come, that this rank computes with."""
        filled = self.filled(row, block)
        if filled and block.rank == self._comm.rank:
            return self.read(row, block, memory)
        memory[filled:] = 0
        if filled:
            tag = _INPUT_TAG + self._code_row(block)
            begun.coming.append(self._comm.receive_into(memory[:filled], block.rank, tag))
        return memory

    def _compute(self, begun: _Round) -> Operation[None]:
        """Compute what this rank is to compute of a round, and send it."""
        yield from interleaved(begun.coming)
        yield True
        for step, blocks, rooms in begun.computing:
            self._do(step, blocks, rooms)
            for room, result in zip(rooms, step.results, strict=True):
                if result.rank != self._comm.rank:
                    yield from paced(self._limit, room.size)
                    begun.rest.append(self._comm.send(room, result.rank, _RESULT_TAG))

    def _finish(self, begun: _Round) -> Operation[None]:
        """Wait until all of a round has come and gone."""
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
        """Which block of its stripe a block is, as the code counts: data first, then parity."""
        return block.index if block.kind == "data" else self._stripes.data_blocks + block.index
