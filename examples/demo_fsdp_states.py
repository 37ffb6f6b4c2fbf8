"""Full tensors of a sharded state, and their comparison, byte for byte (part of demo_fsdp.py)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor

#: Way to save -> event -> seconds.
Costs = dict[str, dict[str, float]]
#: What live tensors are overwritten with before a restore: bytes left over from before must not pass for restored.
_SPOILT = -7.75


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Path -> tensor, of nested dicts and lists."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict | list):
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves_of(entry, f"{path}.{name}" if path else str(name))


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(state: dict[str, Any]) -> dict[str, Tensor]:
    """Path -> full tensor (collective)."""
    leaves = leaves_of(state)
    return {path: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf for path, leaf in leaves}


def write_whole(state: dict[str, Any], path: Path) -> None:
    """All full tensors to a file, which is whole if it is there; by rank 0 (collective)."""
    tensors = whole(state)
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: tensor.detach().clone() for name, tensor in tensors.items()}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)


def spoil(state: dict[str, Any]) -> None:
    """Overwrite every element that this rank has."""
    with torch.no_grad():
        for _, leaf in leaves_of(state):
            local_of(leaf).fill_(_SPOILT)


def differences(tensors: dict[str, Tensor], file: Path) -> tuple[list[str], int]:
    """Compare with what :func:`write_whole` wrote; returns the paths that are not the same, and all bytes compared."""
    expected = torch.load(file, weights_only=True)
    wrong = sorted(expected.keys() ^ tensors.keys())
    for path in expected.keys() & tensors.keys():
        one, other = expected[path], tensors[path].detach()
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(_bytes_of(one), _bytes_of(other)):
            wrong.append(path)
    return wrong, sum(tensor.nbytes for tensor in expected.values())


def load_with_dcp(folder: Path) -> dict[str, Tensor]:
    """Path -> full tensor, of a checkpoint of DCP's, in one process."""
    entries = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state: dict[str, Any] = {
        path: torch.empty(entry.size, dtype=entry.properties.dtype)
        for path, entry in entries.items()
        if isinstance(entry, dcp.TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it takes this to be a job without its ranks
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
