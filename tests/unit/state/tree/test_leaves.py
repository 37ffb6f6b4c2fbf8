"""Tensors and arrays of every type and every layout come back to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.states import difference
from tests.unit.round_trip import both_ways, restore, save


def test_every_torch_dtype_with_every_byte_in_every_position(tmp_path: Path) -> None:
    both_ways(tmp_path, {name: views_of(dtype) for name, dtype in TORCH_DTYPES.items()})


def views_of(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    bits = torch.arange(256 * 48, dtype=torch.int64).mul(40503).bitwise_right_shift(4).to(torch.uint8)
    if dtype is torch.bool:
        bits &= 1
    flat = bits.view(dtype)

    def fresh() -> torch.Tensor:
        return bits.clone().view(dtype)

    return {
        "flat": flat,
        "matrix": fresh().view(-1, 4),
        "transposed": fresh().view(-1, 4).T,
        "strided": fresh()[1::3],
        "one of many": fresh()[5:6],
        "strided one": fresh()[::7][:1],
        "expanded": fresh()[:3].view(3, 1).expand(3, 4),
        "0-dim": fresh()[3],
        "empty": flat[:0],
        "empty 3d": flat[:0].view(2, 0, 3),
        "last": fresh().view(2, -1)[:, -1:],
    }


NUMPY = {
    "bool": np.array([True, False, True]),
    "ints": np.arange(-5, 5, dtype="i2"),
    "big endian": np.arange(5, dtype=">f8"),
    "big endian matrix": np.arange(6, dtype=">u4").reshape(2, 3).T,
    "float16": np.array([1.5, np.nan, -0.0], dtype="f2"),
    "longdouble": np.array([1, 3], dtype="g") / 3,
    "complex": np.array([1 + 2j, np.nan], dtype="c8"),
    "text": np.array(["", "a", "äöü", "\U0001f600"]),
    "big endian text": np.array(["ab", "c"]).astype(">U3"),
    "bytes": np.array([b"", b"abc", b"\0x"]),
    "odd bytes": np.array([b"abcde", b"f"], dtype="S5"),
    "dates": np.array(["2024-02-29", "NaT"], dtype="M8[D]"),
    "durations": np.array([1, -1], dtype="m8[ns]"),
    "0-dim": np.array(2.5),
    "0-dim text": np.array("text"),
    "empty": np.zeros((0, 3)),
    "strided": np.arange(20)[::3],
    "strided one": np.arange(20)[::3][:1],
    "reversed": np.arange(20)[::-1],
    "both reversed": np.arange(20).reshape(4, 5)[::-1, ::-2],
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "unaligned": np.frombuffer(b"\1" + bytes(range(16)), dtype="<i4", offset=1, count=4),
}


def test_numpy_arrays(tmp_path: Path) -> None:
    loaded = both_ways(tmp_path, NUMPY)
    assert [loaded[name].dtype.str for name in NUMPY] == [array.dtype.str for array in NUMPY.values()], "byte order too"


@pytest.mark.parametrize("itemsize", [(4 << 20) - 1, (4 << 20) + 1, 9 << 20])
def test_elements_larger_than_a_chunk(tmp_path: Path, itemsize: int) -> None:
    array = np.array([b"a" * itemsize, b"b" * (itemsize - 1)])
    both_ways(tmp_path, {"item": array, "reversed": array[::-1]})


def test_lazily_conjugated_and_negated_tensors(tmp_path: Path) -> None:
    """They are saved as they read; live ones are written through."""
    base = torch.complex(torch.arange(6.0), -torch.arange(6.0)).view(2, 3)
    state = {"conj": base.conj(), "neg": base.clone().conj().imag, "transposed": base.clone().mH}
    assert state["neg"].is_neg()
    save(tmp_path, state)
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None
    live = {name: torch.zeros_like(tensor.resolve_conj().resolve_neg()) for name, tensor in state.items()}
    assert difference(state, restore(tmp_path, live)) is None
    under = torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(2, 3, dtype=torch.complex64)
    live |= {"conj": under[0].conj(), "neg": under[1].conj().imag}
    assert live["conj"].is_conj() and live["neg"].is_neg()
    restore(tmp_path, live)
    assert difference(state, live) is None
    assert torch.equal(under[0], base) and torch.equal(under[1].imag, base.imag)


def test_only_the_elements_of_a_view_are_saved(tmp_path: Path) -> None:
    base = torch.zeros(1 << 20)
    report = save(
        tmp_path, {"a": base[::4096], "b": np.zeros(1 << 20)[: 1 << 18 : 1024], "c": base.view(1024, -1)[:, 7]}
    )
    assert report.raw_bytes == 4 * 256 + 8 * 256 + 4 * 1024
    assert sum(file.stat().st_size for file in next((tmp_path / "ckpt").glob("step-*")).iterdir()) < 20_000


def test_autograd_is_neither_needed_nor_touched(tmp_path: Path) -> None:
    leaf = torch.ones(3, requires_grad=True)
    state = {"p": torch.nn.Parameter(torch.arange(4.0)), "leaf": leaf, "result": leaf * 2, "frozen": torch.ones(2)}
    loaded = both_ways(tmp_path, state)
    assert not any(tensor.requires_grad for tensor in loaded.values())
    live = {
        "p": torch.nn.Parameter(torch.zeros(4)),
        "leaf": torch.zeros(3, requires_grad=True),
        "result": torch.zeros(3),
        "frozen": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    }
    before = dict(live)
    restore(tmp_path, live)
    assert all(live[name] is before[name] for name in live)
    assert live["p"].requires_grad and live["leaf"].is_leaf and not live["frozen"].requires_grad
    assert difference(state, live) is None
