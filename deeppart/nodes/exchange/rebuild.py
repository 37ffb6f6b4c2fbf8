"""Lost parts from parity: who sends which block to whom, and the arithmetic.

Collective. From what is known of the files, every rank derives, for each block that is wanted, which k blocks it is
computed from; these are sent to the rank that wants it. Whether the result is right is for the digests of the part to
tell. If it is not, a careful second try finds out more first: the ranks that can read parity tell everyone the digests
of all blocks, and every rank checks the blocks it can read and tells which are good. So a file with some bad blocks
still helps with its good ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeppart.comm.base import Comm, Operation, interleaved
from deeppart.model import ParityIdentity
from deeppart.nodes.erasure import ReedSolomon
from deeppart.nodes.exchange.memory import Arena, Bytes, reserve_together
from deeppart.nodes.exchange.set_files import READ_ERRORS, ParitySetFiles, SetFiles, find_good_blocks, holder_of
from deeppart.part import set_id, stripes_of
from deeppart.plan.restart import Rebuild

#: Wanted blocks under way at once.
_WINDOW = 3
_TAG = 0


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


def padded_bytes(identity: ParityIdentity) -> int:
    """Memory that rebuilding one part takes: its rows, whole."""
    stripes = stripes_of(identity)
    last = stripes.rows - 1
    return 0 if last < 0 else stripes.start(last, 0) + stripes.data_blocks * stripes.length(last)


def rebuild_parts(
    comm: Comm, wanted: Sequence[Wanted], memory: Mapping[int, Bytes], arena: Arena, *, careful: bool
) -> Operation[dict[int, str]]:
    """Rebuild parts (collective; every rank gives the same ``wanted``).

    Args:
        memory: part -> :func:`padded_bytes` of memory, for the parts that this rank gets.
        careful: find out first which blocks are good; otherwise the files are taken for good.

    Returns:
        part -> why it could not be rebuilt; the same on every rank. The bytes of the others are in ``memory`` and are
        still to be checked as a part.
    """
    yield from reserve_together(
        comm, arena, max((_lengths(each.rebuild.identity) for each in wanted), key=sum, default=[])
    )
    sets: dict[str, ParitySetFiles] = {}
    for each in wanted:
        entry = sets.setdefault(each.name, ParitySetFiles(each.rebuild.identity))
        entry.add(each.rebuild)
        entry.doubtful.add(("data", each.rebuild.identity.place))
    files = SetFiles(comm.rank)
    try:
        if careful:
            yield from find_good_blocks(comm, files, sets)
        failures: dict[int, str] = {}
        for each in wanted:
            recipe = _recipe(each, sets[each.name])
            if isinstance(recipe, str):
                failures[each.part] = recipe
            elif recipe:
                mine = memory[each.part] if comm.rank == each.reader else None
                yield from _Moving(comm, each, sets[each.name], files, arena).run(recipe, mine)
        return failures
    finally:
        files.close()


def _lengths(identity: ParityIdentity) -> list[int]:
    """Of the blocks that are under way at once while a part is rebuilt, in bytes."""
    stripes = stripes_of(identity)
    return [stripes.block_bytes] * (_WINDOW * stripes.data_blocks)


@dataclass(frozen=True, slots=True)
class _Step:
    """One wanted block.

    Attributes:
        row, block: which one of the part.
        inputs: of the k blocks it is computed from, or the one good copy of it.
    """

    row: int
    block: int
    inputs: tuple[_Input, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    """A block to use.

    Attributes:
        kind, place, which: the file.
        index: which block of the file's row.
        code_row: which block of the stripe, as the code counts: data first, then parity.
    """

    kind: str
    place: int
    which: int
    index: int
    code_row: int


def _recipe(wanted: Wanted, entry: ParitySetFiles) -> list[_Step] | str:
    """The way to compute every block of a part; or the reason why one cannot be computed."""
    stripes, lost = entry.stripes, wanted.rebuild.identity.place
    k = stripes.data_blocks
    steps = []
    for row in range(stripes.rows):
        for block in range(k):
            stripe = stripes.stripe_of(lost, block)
            own = _input(entry, "data", lost, row, block, block)
            if own is not None:
                steps.append(_Step(row, block, (own,)))
                continue
            choice = [_input(entry, "data", stripes.source(stripe, i), row, i, i) for i in range(k) if i != block] + [
                _input(entry, "parity", stripes.keeper(stripe, j), row, j, k + j) for j in range(stripes.tolerate)
            ]
            inputs = [each for each in choice if each is not None][:k]
            if len(inputs) < k:
                return f"rebuild from parity: of the {k} blocks needed for row {row}, {len(inputs)} are sound"
            steps.append(_Step(row, block, tuple(inputs)))
    return steps


def _input(entry: ParitySetFiles, kind: str, place: int, row: int, index: int, code_row: int) -> _Input | None:
    which = entry.which_is_good(kind, place, row, index)
    return None if which is None else _Input(kind, place, which, index, code_row)


class _Moving:
    """One part being rebuilt, as seen by one rank: it sends blocks, or gets them all, or neither."""

    def __init__(self, comm: Comm, wanted: Wanted, entry: ParitySetFiles, files: SetFiles, arena: Arena) -> None:
        self._comm, self._wanted, self._entry, self._files, self._arena = comm, wanted, entry, files, arena
        stripes = entry.stripes
        self._code = ReedSolomon(stripes.data_blocks, stripes.tolerate)

    def run(self, recipe: list[_Step], memory: Bytes | None) -> Operation[None]:
        """Do this rank's share of it."""
        stripes = self._entry.stripes
        slots = self._arena.cut(_lengths(self._wanted.rebuild.identity))
        flying: list[tuple[_Step, list[Bytes], list[Operation[None]]]] = []
        for number, step in enumerate(recipe):
            if len(flying) == _WINDOW:
                yield from self._land(*flying.pop(0), memory)
            blocks = [block[: stripes.length(step.row)] for block in slots[number % _WINDOW :: _WINDOW]]
            flying.append((step, *self._start(step, blocks)))
        for flight in flying:
            yield from self._land(*flight, memory)
        self._arena.give_back()

    def _start(self, step: _Step, memory: list[Bytes]) -> tuple[list[Bytes], list[Operation[None]]]:
        """Send what this rank has of a step, or ask for it; the blocks it is computed from, and what is under way."""
        reader, blocks = self._wanted.reader, []
        moves: list[Operation[None]] = []
        for block, each in zip(memory, step.inputs, strict=False):
            piece = self._entry.piece(each.kind, each.place, each.which)
            holder = reader if self._entry.is_empty(each.kind, each.place, step.row, each.index) else holder_of(piece)
            if holder == self._comm.rank:
                try:
                    block = self._files.get(self._entry, each.kind, piece, step.row, each.index, block)
                except READ_ERRORS:
                    block[:] = 0  # good a moment ago; the check of the whole part will tell
                if holder != reader:
                    moves.append(self._comm.send(block, reader, _TAG))
            elif self._comm.rank == reader:
                moves.append(self._comm.receive_into(block, holder, _TAG))
            blocks.append(block)
        return blocks, moves

    def _land(
        self, step: _Step, blocks: list[Bytes], moves: list[Operation[None]], memory: Bytes | None
    ) -> Operation[None]:
        yield from interleaved(moves)
        if memory is not None:
            stripes = self._entry.stripes
            start = stripes.start(step.row, step.block)
            out = memory[start : start + stripes.length(step.row)]
            if len(blocks) == 1 and step.inputs[0].code_row == step.block:
                out[:] = blocks[0]
            else:
                self._code.rebuild(blocks, [each.code_row for each in step.inputs], [step.block], [out])
        yield True
