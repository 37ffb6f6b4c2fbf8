"""Holds the memory of tensors and arrays while it is copied, and copies memory that may be freed meanwhile."""

from deeppart.state.memory.copies import copy_memory, gather_memory, memmove
from deeppart.state.memory.held import (
    Extents,
    HeldMemory,
    Holder,
    array_lacks_memory,
    extent,
    freed_memory,
    place_of,
    storage_address,
    without_memory,
)

__all__ = [
    "Extents",
    "HeldMemory",
    "Holder",
    "array_lacks_memory",
    "copy_memory",
    "extent",
    "freed_memory",
    "gather_memory",
    "memmove",
    "place_of",
    "storage_address",
    "without_memory",
]
