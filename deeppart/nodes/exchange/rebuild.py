"""Rebuilds lost parts from parity: plans from which blocks and on which rank each block is computed.

Collective: all ranks derive the same steps from what is known about the files (:func:`plan_steps`).

The digests of the part decide whether the result is right. If not, a second, careful try first checks all blocks: ranks
that can read parity share the digests of all blocks, and every rank shares which of its blocks are good. So the good
blocks of a damaged file can still be used.

All wanted blocks of a stripe, of one or several lost parts, are computed on one of the ranks that read its blocks.
Ranks that have sent and received least so far are preferred, which spreads arithmetic and network traffic. The rank
that wants a part receives it once, not k times: the aim of Mitra et al., "Partial-parallel-repair (PPR): a distributed
technique for repairing erasure coded storage", EuroSys 2016.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart.comm import Comm, Operation
from deeppart.errors import StorageError
from deeppart.model import ParityIdentity
from deeppart.nodes.exchange.coding import Block, Coding, Step, memory_lengths
from deeppart.nodes.exchange.memory import Arena, Bytes
from deeppart.nodes.exchange.set_files import READ_ERRORS, ParitySetFiles, SetFiles, find_good_blocks, holder_of
from deeppart.part import set_id, stripes_of
from deeppart.plan.restart import Rebuild

#: Steps of a round.
_STEPS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        refused: part -> why it could not be rebuilt; the same on every rank.
        shortage: the error if this rank could not read its files for lack of resources, such as open files; otherwise
            None. With one, refused or wrong parts on any rank say nothing about the files.
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
    """Rebuild parts (collective; ``wanted`` is the same on all ranks); for :func:`begin_together`.

    ``at`` converts the location of a source to a path.
    """
    identities = [each.rebuild.identity for each in wanted]
    lengths = [memory_lengths(len(each.members), each.block_bytes) for each in identities]
    arena.reserve(max(lengths, key=sum, default=[]))
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
                rounds = (steps[at : at + _STEPS_AT_ONCE] for at in range(0, len(steps), _STEPS_AT_ONCE))
                yield from _Rebuilding(comm, entry, files, arena, memory).run(rounds)
        return Rebuilt(failures, files.shortage)
    finally:
        files.close()


class _Rebuilding(Coding):
    """One rank's share of rebuilding parts of one set."""

    def __init__(
        self, comm: Comm, entry: ParitySetFiles, files: SetFiles, arena: Arena, memory: Mapping[int, Bytes]
    ) -> None:
        super().__init__(comm, entry.identity, arena)
        self._entry, self._files, self._memory = entry, files, memory

    def read(self, row: int, block: Block, memory: Bytes) -> Bytes:
        piece = self._entry.files[block.kind, block.place][block.which]
        try:
            return self._files.get(self._entry, block.kind, piece, row, block.index, memory)
        except READ_ERRORS:
            memory[:] = 0  # the check of the whole part will find it
            return memory

    def room(self, row: int, block: Block, memory: Bytes) -> Bytes:
        part = self._identity.members[block.place].part
        assert part is not None
        start = self._stripes.start(row, block.index)
        return self._memory[part][start : start + memory.size]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part to rebuild.

    Attributes:
        part: its number.
        reader: the rank that receives it.
        rebuild: the files from which it can be rebuilt.
    """

    part: int
    reader: int
    rebuild: Rebuild

    @property
    def name(self) -> str:
        """The id of its parity set."""
        return set_id(self.rebuild.identity)

    @property
    def place(self) -> int:
        """Its place in the set."""
        return self.rebuild.identity.place


def padded_bytes(identity: ParityIdentity) -> int:
    """Bytes of memory for a rebuilt part: whole rows."""
    stripes = stripes_of(identity)
    last = stripes.rows - 1
    return 0 if last < 0 else stripes.start(last, 0) + stripes.data_blocks * stripes.length(last)


def plan_steps(entry: ParitySetFiles, wanted: Sequence[Wanted]) -> tuple[list[Step], dict[int, str]]:
    """The steps that compute all blocks of the wanted parts of one set; and part -> why it cannot be computed."""
    k = entry.stripes.data_blocks
    parts = {each.place: each.part for each in wanted}
    failures: dict[int, str] = {}
    found: list[tuple[int, list[Block], list[Block]]] = []
    for row in range(entry.stripes.rows):
        for stripe in range(entry.stripes.members):
            copies, lost = _wanted_blocks(entry, wanted, row, stripe)
            found += [(row, [own], [result]) for own, result in copies]
            if lost:
                sound = _sound_blocks(entry, row, stripe)
                found.append((row, sound, lost))
                if len(sound) < k:
                    failures = {parts[each.place]: _why(entry, row, len(sound)) for each in lost} | failures
    steps: list[Step] = []
    sent: Counter[int] = Counter()  # rank -> blocks
    received: Counter[int] = Counter()
    for row, sound, results in found:
        kept = tuple(each for each in results if parts[each.place] not in failures)
        if kept:
            steps.append(_shared_out(entry, row, sound, kept, (sent, received)))
    return steps, failures


def _shared_out(
    entry: ParitySetFiles,
    row: int,
    sound: list[Block],
    results: tuple[Block, ...],
    moved: tuple[Counter[int], Counter[int]],
) -> Step:
    """A step with inputs and computer chosen among the ranks that have sent and received least."""
    sent, received = moved
    zeros = {each for each in sound if entry.is_empty(each.kind, each.place, row, each.index)}  # not sent
    inputs = sorted(sound, key=lambda each: -1 if each in zeros else sent[each.rank])[: entry.stripes.data_blocks]
    having = [each.rank for each in inputs if each not in zeros]
    computer = results[0].rank  # of a copy, or of zeros
    if len(inputs) > 1 and having:
        computer = min(sorted(having), key=lambda rank: (received[rank], sent[rank]))
    for rank in having:
        sent[rank] += rank != computer
        received[computer] += rank != computer
    for each in results:
        sent[computer] += each.rank != computer
        received[each.rank] += each.rank != computer
    return Step(row, tuple(inputs), results, computer)


def _why(entry: ParitySetFiles, row: int, sound: int) -> str:
    return f"rebuild from parity: of the {entry.stripes.data_blocks} blocks needed for row {row}, {sound} are sound"


def _wanted_blocks(
    entry: ParitySetFiles, wanted: Sequence[Wanted], row: int, stripe: int
) -> tuple[list[tuple[Block, Block]], list[Block]]:
    """The wanted blocks of a stripe: those with a good copy as (copy, block) pairs, and the others."""
    copies, lost = [], []
    for index in range(entry.stripes.data_blocks):
        place = entry.stripes.source(stripe, index)
        if entry.is_empty("data", place, row, index):
            continue  # beyond the end of the part
        for each in wanted:
            if each.place == place:
                own, result = _good_block(entry, "data", place, row, index), Block("data", place, index, each.reader)
                if own is None:
                    lost.append(result)
                else:
                    copies.append((own, result))
    return copies, lost


def _sound_blocks(entry: ParitySetFiles, row: int, stripe: int) -> list[Block]:
    """The good blocks of a stripe, data first."""
    stripes = entry.stripes
    choice = [_good_block(entry, "data", stripes.source(stripe, i), row, i) for i in range(stripes.data_blocks)]
    choice += [_good_block(entry, "parity", stripes.keeper(stripe, j), row, j) for j in range(stripes.tolerate)]
    return [each for each in choice if each is not None]


def _good_block(entry: ParitySetFiles, kind: str, place: int, row: int, index: int) -> Block | None:
    which = entry.which_is_good(kind, place, row, index)
    return None if which is None else Block(kind, place, index, holder_of(entry.files[kind, place][which]), which)
