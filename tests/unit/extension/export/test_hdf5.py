"""Leaves and keys in HDF5: not one bit is lost, and no two keys become one."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path

import h5py
import numpy as np
import torch

import deeppart
from deeppart.extension.export import export
from deeppart.interop import load
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.states import difference
from tests.unit.interop.making import saved


def raw(item: h5py.Dataset) -> bytes:
    """The bytes as they are in the file."""
    octets = np.zeros(int(np.prod(item.shape)) * item.id.get_type().get_size(), dtype=np.uint8)
    if octets.size:
        item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=item.id.get_type())
    return octets.tobytes()


def test_every_bit_of_every_dtype(tmp_path: Path) -> None:
    octets = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8).repeat(4)
    state = {}
    for name, dtype in TORCH_DTYPES.items():
        data = (octets & 1 if dtype is torch.bool else octets).view(dtype)
        state[name] = {"x": data, "scalar": data[3], "empty": data[:0].view(0, 3)}
    export(saved(tmp_path / "ckpt", state), tmp_path / "out.h5")
    assert difference(state, load(tmp_path / "out.h5")) is None
    with h5py.File(tmp_path / "out.h5") as file:
        for name, leaves in state.items():
            assert raw(file[f"state/{name}/x"]) == bytes(leaves["x"].view(torch.uint8).numpy()), name
            assert file[f"state/{name}/x"].attrs["type"] == f"torch.{name}"
        numbers = state["bfloat16"]["x"].float().numpy()  # to every reader of HDF5, numbers
        np.testing.assert_array_equal(file["state/bfloat16/x"][:].astype(np.float32), numbers)
        assert file["state/bfloat16/scalar"][()] == numbers[3]


def test_keys_that_look_alike(tmp_path: Path) -> None:
    state = {
        "m": {0: 1, "0": 2, True: 3, "": 4, ".": 5, "..": 6, "a/b": 7, "a~1b": 8, "a\0": 9, "größe": 10, None: 11},
        "o": OrderedDict([(2, torch.ones(2)), ("2", torch.zeros(3))]),
        "c": Counter("abba"),
    }
    saved(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert difference(deeppart.load(tmp_path / "ckpt"), load(tmp_path / "out.h5")) is None
    with h5py.File(tmp_path / "out.h5") as file:
        assert {"0", "0~str", "~empty", "~dot", "..", "a~1b", "a~01b", "größe"} <= set(file["state/m"])
