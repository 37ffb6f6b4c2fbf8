"""Fingerprints: all of a leaf, wherever it lies and however; and samples that see every element in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state import fingerprint
from deeppart.state.fingerprint import SAMPLES_PER_LEAF, device_digests, full_digests, sample_digest


@pytest.mark.parametrize("count", [1, 15, 16, 17, 23 * 16, 587 * 3, 4099, 4800])
def test_every_element_is_sampled_in_time(count: int) -> None:
    zeros, marked = torch.zeros(count, dtype=torch.float64), torch.arange(1, count + 1, dtype=torch.float64)
    turns = 3 * (count // SAMPLES_PER_LEAF + 1)
    base = [sample_digest([zeros], turn) for turn in range(turns)]
    unseen = set(range(count))
    for place in range(count) if count < 100 else (0, 1, count // 3, count // 2, count - 17, count - 2, count - 1):
        one = zeros.clone()
        one[place] = marked[place]
        assert any(sample_digest([one], turn) != base[turn] for turn in range(turns)), place
        unseen.discard(place)
    assert len(unseen) < count


# --- digests of whole leaves ------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Any] = {
    "contiguous": lambda: torch.arange(6000.0).view(20, 300),
    "transposed": lambda: torch.arange(6000.0).view(20, 300).t(),
    "every other": lambda: torch.arange(6000.0).view(20, 300)[::2, ::3],
    "expanded": lambda: torch.arange(300.0).expand(20, 300),
    "channels_last": lambda: torch.arange(6000.0).view(2, 3, 10, 100).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.arange(6000.0).view(2, 3, 10, 10, 10).to(memory_format=torch.channels_last_3d),
    "no dimension": lambda: torch.tensor(5.0),
    "conjugated": lambda: torch.arange(300).to(torch.complex64).mul(1j).conj(),
    "negated": lambda: torch.arange(300).to(torch.complex64).mul(1j).conj().imag,
    "numpy reversed": lambda: np.arange(6000.0).reshape(20, 300)[::-1, ::-2],
    "numpy fortran": lambda: np.asfortranarray(np.arange(6000.0).reshape(20, 300)),
    "numpy no dimension": lambda: np.array(7),
    "odd bytes": lambda: torch.arange(250, dtype=torch.uint8)[1:248],
    "half": lambda: torch.arange(77, dtype=torch.float16)[3:],
    "bool": lambda: torch.arange(77) % 3 == 0,
    "double": lambda: torch.arange(77, dtype=torch.float64),
}


def plain(data: Any) -> Any:
    """The same elements in C order."""
    return data.resolve_conj().resolve_neg().contiguous().clone() if isinstance(data, torch.Tensor) else data.copy("C")


@pytest.mark.parametrize("pieces", [1, 7, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_digest_is_of_every_element_in_c_order(
    layout: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PIECE_ELEMENTS", pieces)
    monkeypatch.setattr(fingerprint, "_DIGESTED_ELEMENTS", 100 * pieces)
    monkeypatch.setattr(fingerprint, "_WORTH_THREADS_BYTES", 100)
    data = LAYOUTS[layout]()
    (expected,) = full_digests([data])
    assert full_digests([data, plain(data)], threads=3) == [expected] * 2
    flat = plain(data).reshape(-1)
    for at in sorted({0, len(flat) // 3, len(flat) - 1}):
        other = plain(data).reshape(-1)
        other[at] = other[at] == 0
        assert full_digests([other.reshape(data.shape)], threads=2) != [expected], at


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "numpy" not in name])
def test_a_digest_computed_on_a_device_is_of_every_element_in_c_order(layout: str) -> None:
    data = LAYOUTS[layout]()  # on the CPU, which computes the same
    expected = device_digests([data])
    assert device_digests([plain(data), data]) == expected * 2
    flat = plain(data).reshape(-1)
    seen = set(expected)
    for at in sorted({0, len(flat) // 3, len(flat) - 1}):
        other = plain(data).reshape(-1)
        other[at] = other[at] == 0
        seen.update(device_digests([other.reshape(data.shape)]))
    assert len(seen) == 1 + len({0, len(flat) // 3, len(flat) - 1})


def test_device_digests_tell_apart_what_sums_alone_do_not() -> None:
    base = torch.zeros(1000, dtype=torch.int32)
    variants = [base]
    for pairs in (
        [(0, 1), (1, -1)],
        [(0, 1), (1, 1)],
        [(5, 2**31 - 1)],
        [(1, 1), (0, -1)],
        [(3, -(2**31)), (7, -(2**31))],
    ):
        other = base.clone()
        for at, value in pairs:
            other[at] = value
        variants.append(other)
    variants += [base[:999], torch.zeros(1001, dtype=torch.int32), torch.arange(1000, dtype=torch.int32).flip(0)]
    variants += [torch.arange(1000, dtype=torch.int32), torch.zeros(4001, dtype=torch.uint8)]
    assert len(set(device_digests(variants))) == len(variants)
