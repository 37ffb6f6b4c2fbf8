"""The tensor in what torch.save writes, found without executing anything."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch

from deeppart.interop.dcp.codec_stream import find_tensor
from deeppart.state.tree.leaves import TORCH_DTYPES


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def of_bytes(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A tensor whose bytes are known."""
    return torch.arange(count * dtype.itemsize, dtype=torch.int32).to(torch.uint8).view(dtype)


def test_every_dtype() -> None:
    missed = []
    for name, dtype in TORCH_DTYPES.items():
        data = saved(of_bytes(dtype, 300))
        found = find_tensor(data)
        if found is None:
            missed.append(name)
            continue
        assert (found.dtype, found.nbytes) == (name, 300 * dtype.itemsize)
        assert data[found.start : found.start + 256] == bytes(range(256))[: found.nbytes]
    assert not missed


@pytest.mark.parametrize("name", ["a view", "a parameter", "transposed", "large"])
def test_kinds_of_tensors(name: str) -> None:
    base = of_bytes(torch.float32, 90_000 if name == "large" else 3000)
    tensor = {
        "a view": base.view(30, -1)[3:],
        "a parameter": torch.nn.Parameter(base),
        "transposed": base.view(30, -1).T,
        "large": base,
    }[name]
    data = saved(tensor)
    found = find_tensor(data)
    # The whole storage is saved.
    assert found is not None and found.nbytes == base.nbytes and found.dtype == "float32"
    assert data[found.start : found.start + 256] == bytes(range(256))


def test_it_is_found_as_soon_as_the_header_is_there() -> None:
    data = saved(of_bytes(torch.bfloat16, 5000))
    found = find_tensor(data)
    assert found is not None
    lengths = [length for length in range(found.start) if find_tensor(data[:length]) == found]
    assert lengths and lengths == list(range(lengths[0], found.start)) and lengths[0] < found.start


@pytest.mark.parametrize("value", [5, "archive/data/0", {"a": 1}, [torch.ones(3000), torch.zeros(3000)], torch.ones(0)])
def test_nothing_where_there_is_no_single_tensor(value: Any) -> None:
    found = find_tensor(saved(value))
    assert found is None or found.nbytes == 0


def test_other_bytes_do_no_harm() -> None:
    hostile = pickle.dumps(Exception("x"))
    header = b"PK\x03\x04" + bytes(22)
    for data in (
        b"",
        b"PK\x03\x04",
        b"/data/0" * 100,
        header + b"\xff\xff\xff\xff" + b"a/data/0",
        header + b"\x0a\0\0\0" + b"a/data.pkl" + hostile + header + b"\x08\0\0\0" + b"a/data/0",
        header + b"\x0a\0\0\0" + b"a/data.pkl" + b"\x80\x02Q." + header + b"\x08\0\0\0" + b"a/data/0",
        header
        + b"\x0a\0\0\0"
        + b"a/data.pkl"
        + b"ctorch\nMadeUpStorage\nK\x05Q."
        + header
        + b"\x08\0\0\0"
        + b"a/data/0",
    ):
        assert find_tensor(data) is None
