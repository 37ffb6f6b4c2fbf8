"""Floating-point leaves that the checkpoint has in another precision than the live state (``restore(cast=True)``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from deeppart.state.tree.leaves import TORCH_DTYPES, Array, LeafType

#: Two numbers in a byte, which torch converts into nothing.
_PACKED = "float4"


def can_cast(saved: LeafType, live: LeafType) -> bool:
    """True if both are floating-point, or both complex, and have one shape. Whole numbers may not fit, and are not."""
    if saved.shape != live.shape or saved.kind != live.kind:
        return False
    if saved.kind == "numpy":
        kinds = np.dtype(saved.dtype).kind, np.dtype(live.dtype).kind
        return kinds in (("f", "f"), ("c", "c"))
    if saved.dtype.startswith(_PACKED) or live.dtype.startswith(_PACKED):
        return False
    one, other = TORCH_DTYPES[saved.dtype], TORCH_DTYPES[live.dtype]
    both_float = one.is_floating_point and other.is_floating_point
    return both_float or (one.is_complex and other.is_complex)


def cast_into(pairs: Iterable[tuple[Any, Array]]) -> None:
    """Write restored arrays into live ones of another precision."""
    for live, restored in pairs:
        if isinstance(live, torch.Tensor):
            with torch.no_grad():
                live.copy_(torch.as_tensor(restored))
        else:
            np.copyto(live, restored, casting="same_kind")
