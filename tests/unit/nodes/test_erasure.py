"""The code against two others (pyeclib's own, and one by hand), every way to lose blocks, and what is refused."""

from __future__ import annotations

import ctypes.util
import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from deeppart.errors import ConfigError
from deeppart.nodes import ReedSolomon, erasure
from tests.golden import forge
from tests.sampling import examples

Bytes = npt.NDArray[np.uint8]
#: pyeclib puts this many bytes before each fragment.
FRAGMENT_HEADER_BYTES = 80
SMALL = [(k, m) for k in range(1, 8) for m in range(1, 8) if k + m <= 8]


def random_blocks(count: int, length: int, seed: int = 0) -> list[Bytes]:
    return list(np.random.default_rng([seed, count, length]).integers(0, 256, (count, length), dtype=np.uint8))


def empty_blocks(count: int, length: int) -> list[Bytes]:
    """Blocks that hold something else than any result, so that one left untouched is seen."""
    return [np.full(length, 0xA5, dtype=np.uint8) for _ in range(count)]


def encoded(code: ReedSolomon, data: Sequence[Bytes]) -> list[Bytes]:
    parity = empty_blocks(code.parity, data[0].size)
    code.encode(data, parity)
    return parity


def rebuilt(code: ReedSolomon, blocks: Sequence[Bytes], rows: Sequence[int], wanted: Sequence[int]) -> list[bytes]:
    out = empty_blocks(len(wanted), blocks[0].size)
    code.rebuild([blocks[row] for row in rows], rows, wanted, out)
    return [block.tobytes() for block in out]


# --- the parity is that of others -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "m"), [(1, 2), (2, 2), (3, 2), (4, 4), (7, 2), (8, 3), (10, 4), (13, 8), (28, 4)])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 4096])
def test_parity_is_that_of_pyeclib(k: int, m: int, length: int) -> None:
    """The format names ``isa_l_rs_cauchy``: whoever has only that can compute lost parts from our files (m > 1)."""
    from pyeclib.ec_iface import ECDriver

    data = random_blocks(k, length)
    fragments = ECDriver(k=k, m=m, ec_type="isa_l_rs_cauchy").encode(b"".join(block.tobytes() for block in data))
    theirs = [fragment[FRAGMENT_HEADER_BYTES:] for fragment in fragments]
    assert theirs[:k] == [block.tobytes() for block in data], "fragments are not laid out as this test believes"
    assert [block.tobytes() for block in encoded(ReedSolomon(k, m), data)] == theirs[k:]


@pytest.mark.parametrize(("k", "m"), [*SMALL, (1, 254), (254, 1), (31, 33), (200, 55)])
def test_parity_is_that_of_field_arithmetic_by_hand(k: int, m: int) -> None:
    """Also beyond the 32 fragments that pyeclib can do."""
    data = random_blocks(k, 37)
    expected = forge.parity_of([block.tobytes() for block in data], m)
    assert [block.tobytes() for block in encoded(ReedSolomon(k, m), data)] == expected


# --- any k blocks give all others -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "m"), SMALL)
def test_any_k_blocks_give_all_others(k: int, m: int) -> None:
    code, data = ReedSolomon(k, m), random_blocks(k, 70)
    blocks = [*data, *encoded(code, data)]
    expected = [block.tobytes() for block in blocks]
    for rows in itertools.combinations(range(k + m), k):
        lost = [row for row in range(k + m) if row not in rows]
        assert rebuilt(code, blocks, rows, lost) == [expected[row] for row in lost], rows


@given(st.integers(1, 254), st.data())
@settings(max_examples=examples(40))
def test_any_k_blocks_give_the_others_in_large_codes(k: int, data: st.DataObject) -> None:
    """Up to the 255 blocks that there can be."""
    m = data.draw(st.integers(1, 255 - k))
    code, blocks = ReedSolomon(k, m), random_blocks(k, 65)
    blocks += encoded(code, blocks)
    order = data.draw(st.permutations(range(k + m)))
    rows, wanted = order[:k], order[k : k + 3]
    assert rebuilt(code, blocks, rows, wanted) == [blocks[row].tobytes() for row in wanted]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 4095, 1 << 20])
@pytest.mark.parametrize(("k", "m"), [(1, 1), (4, 1), (3, 2)])
def test_all_lengths_and_nothing_beside_the_blocks_is_touched(k: int, m: int, length: int) -> None:
    """Blocks lie at odd addresses here, with bytes between them that vector units must not run over."""
    memory = np.full((k + 2 * m) * (length + 1) + 1, 0x5A, dtype=np.uint8)
    views = [memory[1 + i * (length + 1) :][:length] for i in range(k + 2 * m)]
    data, parity, out = views[:k], views[k : k + m], views[k + m :]
    for view, block in zip(data, random_blocks(k, length), strict=True):
        view[:] = block
    before = [block.tobytes() for block in data]
    code = ReedSolomon(k, m)
    code.encode(data, parity)
    lost = list(range(min(k, m)))
    rows = [row for row in range(k + m) if row not in lost][:k]
    code.rebuild([[*data, *parity][row] for row in rows], rows, lost, out[: len(lost)])
    assert [block.tobytes() for block in data] == before, "encoding and rebuilding only read data"
    assert [block.tobytes() for block in out[: len(lost)]] == before[: len(lost)]
    assert (memory[:: length + 1] == 0x5A).all(), "bytes between the blocks"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "m"), [(0, 1), (1, 0), (-1, 3), (3, -1), (255, 1), (1, 255), (128, 128), (0, 0)])
def test_impossible_codes(k: int, m: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        ReedSolomon(k, m)


# --- the library is not there -----------------------------------------------------------------------------------------


def refusal(monkeypatch: pytest.MonkeyPatch, bundled: list[str]) -> str:
    """The message when only these files are found; whatever was loaded before stays loaded for other tests."""
    monkeypatch.setattr(erasure, "_bundled", lambda: bundled)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr("deeppart.nodes.erasure.library", erasure.library.__wrapped__)
    with pytest.raises(ConfigError) as caught:
        ReedSolomon(2, 1)
    return str(caught.value)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, [])
    assert "ISA-L" in text and "pip install pyeclib" in text and "libisal2" in text
    assert "neither" in text and "switch the parity level off" in text
