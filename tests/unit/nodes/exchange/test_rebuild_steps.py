"""Steps of a rebuild: every wanted block once, from k sound others, the work and the messages spread over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.nodes import ReedSolomon, Wanted, padded_bytes
from deeppart.nodes.exchange.rebuild import plan_steps
from deeppart.nodes.exchange.set_files import ParitySetFiles
from deeppart.plan.redundancy import Stripes
from deeppart.plan.restart import BlockFile, Rebuild
from tests.sampling import examples

Bytes = npt.NDArray[np.uint8]
BLOCK = 1024


def a_set(
    lengths: Sequence[int], tolerate: int, lost: Sequence[int], *, readers: Sequence[int] | None = None
) -> tuple[ParitySetFiles, list[Wanted]]:
    """A set whose member N is on rank N; the files of lost members are gone, and rank ``readers[i]`` wants a part."""
    members = tuple(
        ParityMember(place if nbytes else None, nbytes, "00" * 16 if nbytes else "")
        for place, nbytes in enumerate(lengths)
    )
    attempt = Attempt("0" * 32, "1" * 32, 7, 1200, len(lengths))
    there = [place for place in range(len(lengths)) if place not in lost]
    data = tuple(BlockFile(place, f"part-{place}" if lengths[place] else "", (place,)) for place in there)
    parity = tuple(BlockFile(place, f"parity-{place}", (place,)) for place in there)
    wanted = [
        Wanted(place, reader, Rebuild(ParityIdentity(attempt, members, tolerate, BLOCK, place), data, parity))
        for place, reader in zip(lost, readers or lost, strict=True)
        if lengths[place]
    ]
    entry = ParitySetFiles(ParityIdentity(attempt, members, tolerate, BLOCK, 0))
    for each in wanted:
        entry.add(each.rebuild)
        entry.doubtful.add(each.place)
    return entry, wanted


def encoded(parts: Sequence[Bytes], stripes: Stripes) -> dict[tuple[int, int, int], Bytes]:
    """(keeper, row, index) -> parity."""
    code = ReedSolomon(stripes.data_blocks, stripes.tolerate)
    found: dict[tuple[int, int, int], Bytes] = {}
    for row in range(stripes.rows):
        for stripe in range(stripes.members):
            data = [block_of(parts[stripes.source(stripe, i)], stripes, row, i) for i in range(stripes.data_blocks)]
            parity = [np.zeros(stripes.length(row), np.uint8) for _ in range(stripes.tolerate)]
            code.encode(data, parity)
            found |= {(stripes.keeper(stripe, j), row, j): block for j, block in enumerate(parity)}
    return found


def block_of(part: Bytes, stripes: Stripes, row: int, block: int) -> Bytes:
    found = np.zeros(stripes.length(row), np.uint8)
    filled = stripes.filled(row, block, part.size)
    found[:filled] = part[stripes.start(row, block) :][:filled]
    return found


@st.composite
def losses(draw: st.DrawFn) -> tuple[list[int], int, list[int], list[int]]:
    """Lengths of the parts, how many may be lost, those that are, and who reads each."""
    members = draw(st.integers(2, 7))
    tolerate = draw(st.integers(1, members - 1))
    lengths = draw(st.lists(st.integers(0, 5 * BLOCK * members), min_size=members, max_size=members))
    lost = draw(st.lists(st.integers(0, members - 1), unique=True, min_size=1, max_size=tolerate))
    return lengths, tolerate, lost, draw(st.lists(st.integers(0, 8), min_size=len(lost), max_size=len(lost)))


@settings(max_examples=examples(60), deadline=None)
@given(losses())
def test_the_steps_give_every_byte_back(drawn: tuple[list[int], int, list[int], list[int]]) -> None:
    lengths, tolerate, lost, readers = drawn
    entry, wanted = a_set(lengths, tolerate, lost, readers=readers)
    stripes, drawing = entry.stripes, np.random.default_rng(sum(lengths))
    parts = [drawing.integers(0, 256, nbytes, dtype=np.uint8) for nbytes in lengths]
    parity, code = encoded(parts, stripes), ReedSolomon(stripes.data_blocks, tolerate)
    memory = {each.part: np.zeros(padded_bytes(each.rebuild.identity), np.uint8) for each in wanted}
    steps, failures = plan_steps(entry, wanted)
    assert not failures
    for step in steps:
        assert all(each.place not in lost for each in step.inputs)
        blocks = [
            block_of(parts[each.place], stripes, step.row, each.index)
            if each.kind == "data"
            else parity[each.place, step.row, each.index]
            for each in step.inputs
        ]
        out = [np.zeros(stripes.length(step.row), np.uint8) for _ in step.results]
        rows = [each.index + (each.kind == "parity") * stripes.data_blocks for each in step.inputs]
        code.rebuild(blocks, rows, [each.index for each in step.results], out)
        for block, result in zip(out, step.results, strict=True):
            start = stripes.start(step.row, result.index)
            assert not memory[result.place][start : start + block.size].any(), "computed twice"
            memory[result.place][start : start + block.size] = block
    for each in wanted:
        np.testing.assert_array_equal(memory[each.part][: lengths[each.place]], parts[each.place])


def test_a_part_that_cannot_be_computed_does_not_keep_the_others() -> None:
    """Two are lost of a set that can do without one; of one of them there is a good copy all the same."""
    entry, wanted = a_set([6 * BLOCK] * 4, 1, [1, 2])
    entry.files["data", 2] = [BlockFile(2, "copy", (3,))]
    k, rows = entry.stripes.data_blocks, entry.stripes.rows
    entry.good = {("data", place, 0): np.ones((rows, k), np.bool_) for place in (0, 2, 3)}
    steps, failures = plan_steps(entry, wanted)
    assert failures == {1: "rebuild from parity: of the 3 blocks needed for row 0, 2 are sound"}
    assert {result.place for step in steps for result in step.results} == {2}
    assert len(steps) == rows * k and all(len(step.inputs) == 1 for step in steps)
