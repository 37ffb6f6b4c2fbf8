"""Lost parts from parity: the blocks on their way, and the arithmetic.

Collective. From what is known of the files, every rank derives what is computed from what, and by whom
(:func:`plan_steps`). The ranks that read the input of a block send it to the one that computes it, and that sends it to
the one that wants it.

Whether the result is right is for the digests of the part to tell. If it is not, a careful second try finds out more
first: the ranks that can read parity tell everyone the digests of all blocks, and every rank checks the blocks it can
read and tells which are good. So a file with some bad blocks still helps with its good ones.

A step is one stripe of one row: all blocks of it that are wanted, of one lost part or of several, are computed from the
same k blocks, on one of the ranks that read some of these. Those do most who have sent and received least so far, so
that all share in the arithmetic and in what the network carries. Who wants a part receives it once, and not k times:
the aim of Mitra et al., "Partial-parallel-repair (PPR): a distributed technique for repairing erasure coded storage",
EuroSys 2016.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.comm import Comm, Operation, interleaved
from deeppart.errors import StorageError
from deeppart.model import ParityIdentity
from deeppart.nodes.erasure import ReedSolomon
from deeppart.nodes.exchange.memory import Arena, Bytes
from deeppart.nodes.exchange.set_files import READ_ERRORS, ParitySetFiles, SetFiles, find_good_blocks, holder_of
from deeppart.part import set_id, stripes_of
from deeppart.plan.restart import Rebuild

#: Steps under way at once. More of them are no faster on a network, nor in shared memory.
_WINDOW = 4
#: Of the blocks that others are computed from, and of those computed: each kind in the order of the steps.
_INPUT_TAG, _RESULT_TAG = 0, 1
#: Computed so many bytes at a time, while they are in the processor's caches.
_SLICE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of the parts that were to be rebuilt.

    Attributes:
        refused: part -> why it could not be rebuilt; the same on every rank.
        shortage: this rank could not read all that it was to read, since it may not open more files. A part that is
            refused, or wrong, on whichever rank, then says nothing of the files. None where it could.
    """

    refused: dict[int, str]
    shortage: StorageError | None = None


def rebuild_parts(
    comm: Comm,
    wanted: Sequence[Wanted],
    memory: Mapping[int, Bytes],
    arena: Arena,
    at: Callable[[str], Path] = Path,
    *,
    careful: bool,
) -> Operation[Rebuilt]:
    """Rebuild parts (collective; every rank gives the same ``wanted``); for :func:`begin_together`.

    ``at`` makes a path of a source's text.
    """
    arena.reserve(max((_lengths(each.rebuild.identity) for each in wanted), key=sum, default=[]))
    yield True
    sets: dict[str, ParitySetFiles] = {}
    wanted_of: dict[str, list[Wanted]] = {}
    for each in wanted:
        name = each.name  # a digest over the members
        entry = sets.setdefault(name, ParitySetFiles(each.rebuild.identity))
        entry.add(each.rebuild)
        entry.doubtful.add(each.place)
        wanted_of.setdefault(name, []).append(each)
    files = SetFiles(comm.rank, at)
    try:
        if careful:
            yield from find_good_blocks(comm, files, sets)
        failures: dict[int, str] = {}
        for name, entry in sets.items():
            steps, refused = plan_steps(entry, wanted_of[name])
            failures |= refused
            if steps:
                yield from _Moving(comm, entry, files, arena, memory).run(steps)
        return Rebuilt(failures, files.shortage)
    finally:
        files.close()


def _lengths(identity: ParityIdentity) -> list[int]:
    """Of the blocks that are under way at once while parts of a set are rebuilt, in bytes: in every slot all of a
    stripe.
    """
    stripes = stripes_of(identity)
    return [stripes.block_bytes] * (_WINDOW * stripes.members)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way, as seen by one rank.

    Attributes:
        step: which.
        slot: the memory that it takes, of the :data:`_WINDOW` steps under way at once.
        blocks: what is computed with; only on the rank that does it.
        results: where what is computed comes to lie: in the part, or in memory to send it from.
        moves: exchanges that have to end before it is computed; elsewhere, before this rank goes on.
    """

    step: Step
    slot: int
    blocks: list[Bytes]
    results: list[Bytes]
    moves: list[Operation[None]]


class _Moving:
    """Parts of one set being rebuilt, as seen by one rank.

    No ranks wait for each other in a circle: each begins the steps in their order, and what it receives for one before
    anything can be sent to it; it is at most :data:`_WINDOW` steps ahead of the one that it waits for.
    """

    def __init__(
        self, comm: Comm, entry: ParitySetFiles, files: SetFiles, arena: Arena, memory: Mapping[int, Bytes]
    ) -> None:
        self._comm, self._entry, self._files, self._arena = comm, entry, files, arena
        self._memory, self._stripes = memory, entry.stripes
        self._code = ReedSolomon(self._stripes.data_blocks, self._stripes.tolerate)
        #: For each slot, the results that are being sent from it.
        self._leaving: list[list[Operation[None]]] = [[] for _ in range(_WINDOW)]

    def run(self, steps: Sequence[Step]) -> Operation[None]:
        """Do this rank's share of them."""
        pieces = self._arena.cut(_lengths(self._entry.identity))
        flying: list[_Flight] = []
        for number, step in enumerate(steps):
            if len(flying) == _WINDOW:
                yield from self._land(flying.pop(0))
            length, slot = self._stripes.length(step.row), number % _WINDOW
            flying.append(self._start(step, slot, [piece[:length] for piece in pieces[slot::_WINDOW]]))
        for flight in flying:
            yield from self._land(flight)
        yield from interleaved(move for moves in self._leaving for move in moves)
        self._arena.give_back()

    def _start(self, step: Step, slot: int, pieces: list[Bytes]) -> _Flight:
        """Send what this rank has for a step, and ask for what it gets."""
        me, length = self._comm.rank, self._stripes.length(step.row)
        blocks: list[Bytes] = []
        moves: list[Operation[None]] = []
        for block, each in zip(pieces, step.inputs, strict=False):
            if each.holder == me:
                block = self._read(step.row, each, block)
                if me != step.computer:
                    moves.append(self._comm.send(block, step.computer, _INPUT_TAG))
            elif me == step.computer:
                if each.holder is None:
                    block[:] = 0
                else:
                    moves.append(self._comm.receive_into(block, each.holder, _INPUT_TAG))
            blocks.append(block)
        results: list[Bytes] = []
        for block, result in zip(pieces[self._stripes.data_blocks :], step.results, strict=False):
            if me == result.wanted.reader:
                start = self._stripes.start(step.row, result.block)
                block = self._memory[result.wanted.part][start : start + length]
                if me != step.computer:
                    moves.append(self._comm.receive_into(block, step.computer, _RESULT_TAG))
            results.append(block)
        return _Flight(step, slot, blocks, results, moves)

    def _read(self, row: int, each: Input, memory: Bytes) -> Bytes:
        piece = self._entry.files[each.kind, each.place][each.which]
        try:
            return self._files.get(self._entry, each.kind, piece, row, each.index, memory)
        except READ_ERRORS:
            memory[:] = 0  # good a moment ago; the check of the whole part will tell
            return memory

    def _land(self, flight: _Flight) -> Operation[None]:
        yield from interleaved(flight.moves)
        if self._comm.rank == flight.step.computer:
            yield from interleaved(self._leaving[flight.slot])
            self._compute(flight)
            self._leaving[flight.slot] = [
                self._comm.send(block, result.wanted.reader, _RESULT_TAG)
                for block, result in zip(flight.results, flight.step.results, strict=True)
                if result.wanted.reader != self._comm.rank
            ]
        yield True

    def _compute(self, flight: _Flight) -> None:
        step = flight.step
        if step.is_copy:
            flight.results[0][:] = flight.blocks[0]
            return
        rows, wanted = [each.code_row for each in step.inputs], [each.block for each in step.results]
        for at in range(0, self._stripes.length(step.row), _SLICE_BYTES):
            piece = slice(at, at + _SLICE_BYTES)
            self._code.rebuild(
                [each[piece] for each in flight.blocks], rows, wanted, [e[piece] for e in flight.results]
            )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part to rebuild.

    Attributes:
        part: its number.
        reader: the rank that gets it.
        rebuild: from what.
    """

    part: int
    reader: int
    rebuild: Rebuild

    @property
    def name(self) -> str:
        """Tells its parity set from others."""
        return set_id(self.rebuild.identity)

    @property
    def place(self) -> int:
        """Its place in the set."""
        return self.rebuild.identity.place


def padded_bytes(identity: ParityIdentity) -> int:
    """Memory that rebuilding one part takes: its rows, whole."""
    stripes = stripes_of(identity)
    last = stripes.rows - 1
    return 0 if last < 0 else stripes.start(last, 0) + stripes.data_blocks * stripes.length(last)


@dataclass(frozen=True, slots=True)
class Input:
    """A block to use.

    Attributes:
        kind, place, which: the file.
        index: which block of the file's row.
        code_row: which block of the stripe, as the code counts: data first, then parity.
        holder: the rank that reads it; None for a block of zeros, which nobody has to send.
    """

    kind: str
    place: int
    which: int
    index: int
    code_row: int
    holder: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """A block to compute.

    Attributes:
        wanted: whose it is.
        block: which one of the part's row, and of the stripe's data.
    """

    wanted: Wanted
    block: int


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
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    computer: int

    @property
    def is_copy(self) -> bool:
        """True if there is nothing to compute."""
        return [each.code_row for each in self.inputs] == [each.block for each in self.results]


def plan_steps(entry: ParitySetFiles, wanted: Sequence[Wanted]) -> tuple[list[Step], dict[int, str]]:
    """The way to compute every block of parts of one set."""
    k = entry.stripes.data_blocks
    failures: dict[int, str] = {}
    found: list[tuple[int, list[Input], list[Result]]] = []
    for row in range(entry.stripes.rows):
        for stripe in range(entry.stripes.members):
            copies, lost = _results(entry, wanted, row, stripe)
            found += [(row, [own], [result]) for own, result in copies]
            if lost:
                sound = _sound_blocks(entry, row, stripe)
                found.append((row, sound, lost))
                if len(sound) < k:
                    failures = {each.wanted.part: _why(entry, row, len(sound)) for each in lost} | failures
    steps: list[Step] = []
    sent: Counter[int] = Counter()  # rank -> blocks
    received: Counter[int] = Counter()
    for row, sound, results in found:
        kept = tuple(each for each in results if each.wanted.part not in failures)
        if kept:
            steps.append(_shared_out(row, sound, kept, k, (sent, received)))
    return steps, failures


def _shared_out(
    row: int, sound: list[Input], results: tuple[Result, ...], k: int, moved: tuple[Counter[int], Counter[int]]
) -> Step:
    """A step of which those do most who have done least."""
    sent, received = moved
    inputs = sorted(sound, key=lambda each: -1 if each.holder is None else sent[each.holder])[:k]
    having = sorted({each.holder for each in inputs if each.holder is not None})
    computer = results[0].wanted.reader  # of a copy, or of zeros
    if len(inputs) > 1 and having:
        computer = min(having, key=lambda rank: (received[rank], sent[rank]))
    for holder in having:
        sent[holder] += sum(each.holder == holder != computer for each in inputs)
    received[computer] += sum(each.holder not in (None, computer) for each in inputs)
    for reader in (each.wanted.reader for each in results):
        sent[computer] += reader != computer
        received[reader] += reader != computer
    return Step(row, tuple(inputs), results, computer)


def _why(entry: ParitySetFiles, row: int, sound: int) -> str:
    return f"rebuild from parity: of the {entry.stripes.data_blocks} blocks needed for row {row}, {sound} are sound"


def _results(
    entry: ParitySetFiles, wanted: Sequence[Wanted], row: int, stripe: int
) -> tuple[list[tuple[Input, Result]], list[Result]]:
    """The wanted blocks of a stripe of which there is a good copy, and the others."""
    copies, lost = [], []
    for block in range(entry.stripes.data_blocks):
        place = entry.stripes.source(stripe, block)
        if entry.is_empty("data", place, row, block):
            continue  # behind the end of the part
        for each in wanted:
            if each.place == place:
                own = _input(entry, "data", place, row, block, block)
                if own is None:
                    lost.append(Result(each, block))
                else:
                    copies.append((own, Result(each, block)))
    return copies, lost


def _sound_blocks(entry: ParitySetFiles, row: int, stripe: int) -> list[Input]:
    """The good blocks of a stripe, data first."""
    stripes = entry.stripes
    k = stripes.data_blocks
    choice = [_input(entry, "data", stripes.source(stripe, i), row, i, i) for i in range(k)]
    choice += [_input(entry, "parity", stripes.keeper(stripe, j), row, j, k + j) for j in range(stripes.tolerate)]
    return [each for each in choice if each is not None]


def _input(entry: ParitySetFiles, kind: str, place: int, row: int, index: int, code_row: int) -> Input | None:
    which = entry.which_is_good(kind, place, row, index)
    if which is None:
        return None
    is_empty = entry.is_empty(kind, place, row, index)
    holder = None if is_empty else holder_of(entry.files[kind, place][which])
    return Input(kind, place, which, index, code_row, holder)
