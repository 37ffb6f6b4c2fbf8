"""Archives read by h5py alone, knowing nothing of deeppart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import deeppart
from deeppart.state.tensors.leaves import TORCH_DTYPES
from deeppart.state.values import decode_value


def written(directory: Path, state: Any, step: int = 1) -> Path:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=20.0)) as ck:
        ck.checkpoint(state, step).wait(timeout=200)
    return directory


def raw(item: h5py.Dataset) -> np.ndarray[Any, Any]:
    """The bytes as they are in the file."""
    octets = np.zeros(int(np.prod(item.shape)) * item.id.get_type().get_size(), dtype=np.uint8)
    if octets.size:
        item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=item.id.get_type())
    return octets


def read_back(item: h5py.Group | h5py.Dataset) -> Any:
    """What docs/commands.md says of an archive, the other way round."""
    kind = item.attrs["type"]
    if isinstance(item, h5py.Group):
        named = {name: read_back(child) for name, child in item.items()}
        if kind in ("list", "tuple"):
            return [named[str(index)] for index in range(len(named))]
        return {exact(item[name], name): child for name, child in named.items()}
    library, _, dtype = kind.partition(".")
    if library == "torch":
        tensor = torch.zeros(raw(item).size, dtype=torch.uint8)  # from_numpy gives an empty one a stride of 0
        return tensor.copy_(torch.from_numpy(raw(item))).view(TORCH_DTYPES[dtype]).view(item.shape)
    if library == "numpy" and not dtype.isalnum():
        return raw(item).view(dtype).reshape(item.shape)
    if "items" in item.attrs:
        return item[()].tolist()
    if item.attrs.get("encoding") == "json":
        return plain(decode_value(json.loads(item.asstr()[()]), ""))
    value = item[()]
    python: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "complex": complex}
    python |= {"NoneType": lambda _: None, "str": lambda text: text.decode(), "bytes": lambda data: data.tobytes()}
    return python[kind](value) if kind in python else value


def exact(child: h5py.HLObject, name: str) -> Any:
    return decode_value(json.loads(child.attrs["key"]), "") if "key" in child.attrs else name


def plain(state: Any) -> Any:
    """Containers as :func:`read_back` tells them."""
    if hasattr(state, "_fields"):
        return {name: plain(item) for name, item in zip(state._fields, state, strict=True)}
    if isinstance(state, dict):
        return {key: plain(item) for key, item in state.items()}
    return (
        [plain(item) for item in state] if isinstance(state, (list, tuple)) and type(state) is not torch.Size else state
    )
