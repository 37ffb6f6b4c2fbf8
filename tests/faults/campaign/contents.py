"""The one true state of every checkpoint: a pure function of seed, life, step and rank.

The life is part of it, so that bytes of two attempts at one step could not be mixed unnoticed. Frozen leaves are
the same in all steps: their chunks are referred to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.faults.campaign.records import DTYPES, Leaf

Bytes = npt.NDArray[np.uint8]
#: Which checkpoint: of which life, of which step.
When = tuple[int, int]
#: What fills a live state before a restore, and after a checkpoint has returned.
JUNK, SCRIBBLE = 0xA5, 0x5A


def leaf_bytes(seed: str, when: When, rank: int, leaf: Leaf) -> Bytes:
    """The bytes of a leaf; a rank's own ones begin with its number, so that no two ranks hold the same."""
    nbytes = leaf.count * DTYPES[leaf.dtype]
    time = [] if leaf.frozen else list(when)
    key = [seed, *time, leaf.name] + ([] if leaf.shared else [rank])
    data = _noise(key, nbytes) if leaf.noise else np.resize(np.repeat(_digest(key), 37), nbytes).copy()
    if not leaf.shared and nbytes:
        data[0] = rank + 1
    return data


def _digest(key: Sequence[object]) -> Bytes:
    return np.frombuffer(hashlib.blake2b(repr(list(key)).encode(), digest_size=16).digest(), dtype=np.uint8)


def _noise(key: Sequence[object], nbytes: int) -> Bytes:
    words = np.random.Philox(key=int.from_bytes(_digest(key).tobytes(), "little")).random_raw(-(-nbytes // 8))
    return np.asarray(words, dtype=np.uint64).view(np.uint8)[:nbytes].copy()


def blank(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """A live state, full of junk."""
    state: dict[str, Any] = {"step": -1, "life": -1, "world": -1}
    for leaf in leaves:
        array = np.empty(leaf.count, dtype=leaf.dtype) if leaf.numpy else None
        state[leaf.name] = torch.empty(leaf.count, dtype=getattr(torch, leaf.dtype)) if array is None else array
    overwrite(state, leaves, JUNK)
    return state


def overwrite(state: dict[str, Any], leaves: Sequence[Leaf], value: int) -> None:
    """Fill all leaves with one byte."""
    for leaf in leaves:
        view(state[leaf.name])[:] = value


def fill(state: dict[str, Any], seed: str, when: When, rank: int, world: int, leaves: Sequence[Leaf]) -> None:
    """Make the live state that of a step, as training does: in ways that torch counts, where it is a tensor."""
    life, step = when
    state |= {"step": step, "life": life, "world": world}
    for leaf in leaves:
        live, data = state[leaf.name], leaf_bytes(seed, when, rank, leaf)
        if isinstance(live, torch.Tensor) and data.size:
            live.view(torch.uint8).copy_(torch.from_numpy(data))
        else:
            view(live)[:] = data


def view(data: Any) -> Bytes:
    """The bytes of a tensor or array, not a copy."""
    if isinstance(data, torch.Tensor):
        assert data.is_contiguous()
        return data.view(torch.uint8).numpy() if data.numel() else np.zeros(0, dtype=np.uint8)
    array: Bytes = np.ascontiguousarray(data).view(np.uint8) if data.size else np.zeros(0, dtype=np.uint8)
    return array


def wrong_bytes(found: Any, expected: Bytes) -> int:
    """How many bytes of a leaf are not what they should be."""
    data = view(found)
    if data.size != expected.size:
        return max(data.size, expected.size)
    return int(np.count_nonzero(data != expected))
