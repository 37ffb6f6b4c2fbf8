"""Leaves and keys in HDF5: not one bit is lost, and no two keys become one."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import deeppart
from deeppart.extension.export import export
from deeppart.extension.export.hdf5 import Filter, Hdf5Writer
from deeppart.interop.hdf5 import load
from deeppart.state.tensors.leaves import TORCH_DTYPES
from deeppart.testing.states import difference
from tests.unit.extension.export.reading import raw, written


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_bit_of_every_dtype(tmp_path: Path, name: str) -> None:
    dtype = TORCH_DTYPES[name]
    octets = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8).repeat(4)
    data = (octets & 1 if dtype is torch.bool else octets).view(dtype)
    state = {"x": data, "scalar": data[3], "empty": data[:0].view(0, 3)}
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert difference(state, load(tmp_path / "out.h5")) is None
    with h5py.File(tmp_path / "out.h5") as file:
        assert raw(file["state/x"]) == bytes(data.view(torch.uint8).numpy())
        assert file["state/x"].attrs["type"] == f"torch.{name}"
        if name == "bfloat16":  # to every reader of HDF5, a number
            numbers = file["state/x"][:].astype(np.float32)
            np.testing.assert_array_equal(numbers, data.float().numpy())
            assert file["state/scalar"][()] == float(data[3])


def test_keys_that_look_alike(tmp_path: Path) -> None:
    state = {
        "m": {0: 1, "0": 2, True: 3, "": 4, ".": 5, "..": 6, "a/b": 7, "a~1b": 8, "a\0": 9, "größe": 10, None: 11},
        "o": OrderedDict([(2, torch.ones(2)), ("2", torch.zeros(3))]),
        "c": Counter("abba"),
    }
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert difference(deeppart.load(tmp_path / "ckpt"), load(tmp_path / "out.h5")) is None
    with h5py.File(tmp_path / "out.h5") as file:
        assert {"0", "0~str", "~empty", "~dot", "..", "a~1b", "a~01b", "größe"} <= set(file["state/m"])


def test_what_is_compressed_reads_as_before(tmp_path: Path) -> None:
    state = {
        "w": torch.arange(3_000_000, dtype=torch.float32).view(3, 1000, 1000),
        "b": torch.zeros(70_000, dtype=torch.bfloat16),
        "long": torch.zeros(2, 900_000),
        "small": torch.ones(5),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 5000),
        "texts": np.array(["a", "bc"] * 2000),
    }
    written(tmp_path / "ckpt", state)
    plain_size = export(tmp_path / "ckpt", tmp_path / "plain.h5").file_bytes
    done = export(tmp_path / "ckpt", tmp_path / "out.h5", Hdf5Writer(Filter(1)))
    assert done.file_bytes < plain_size / 2
    assert difference(state, load(tmp_path / "out.h5")) is None
    with h5py.File(tmp_path / "out.h5") as file:
        chunked = {name: file["state"][name].chunks for name in state}
        assert chunked["w"] == (1, 262, 1000) and chunked["long"] == (1, 262_144) and chunked["small"] is None
        assert file["state/w"].compression == "gzip" and file["state/w"].shuffle
    with h5py.File(tmp_path / "plain.h5") as file:
        assert file["state/w"].chunks is None
