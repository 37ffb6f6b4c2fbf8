"""The leaves of a whole state, before a layout divides them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .shapes import Parameter

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One leaf of the whole state.

    Attributes:
        parameter: the parameter to which it belongs.
        path: in the state.
        dtype: torch's name.
        shape: its lengths.
        optimizer: true if it is the optimizer's.
        plain: true if no rank divides it, whatever the layout: a buffer. So it is with what has no dimensions.
    """

    parameter: Parameter
    path: str
    dtype: str
    shape: tuple[int, ...]
    optimizer: bool = False
    plain: bool = False

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * ITEM_BYTES[self.dtype]
