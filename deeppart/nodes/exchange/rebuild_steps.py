"""What is computed from what, and by whom, when parts of a parity set are rebuilt. Local: all ranks derive the same.

A step is one stripe of one row: all blocks of it that are wanted, of one lost part or of several, are computed from the
same k blocks, on one of the ranks that read some of these. Those do most who have sent and received least so far, so
that all share in the arithmetic and in what the network carries. Who wants a part receives it once, and not k times:
the aim of Mitra et al., "Partial-parallel-repair (PPR): a distributed technique for repairing erasure coded storage",
EuroSys 2016.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from deeppart.model import ParityIdentity
from deeppart.nodes.exchange.set_files import ParitySetFiles, holder_of
from deeppart.part import set_id, stripes_of
from deeppart.plan.restart import Rebuild


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


def padded_bytes(identity: ParityIdentity) -> int:
    """Memory that rebuilding one part takes: its rows, whole."""
    stripes = stripes_of(identity)
    last = stripes.rows - 1
    return 0 if last < 0 else stripes.start(last, 0) + stripes.data_blocks * stripes.length(last)


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
    holder = None if is_empty else holder_of(entry.piece(kind, place, which))
    return Input(kind, place, which, index, code_row, holder)
