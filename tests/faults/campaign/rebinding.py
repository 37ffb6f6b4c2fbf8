"""How a tensor gets other memory while the object stays the same, as training code does it between checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Ways; each is an ordinary line of user code.
WAYS = ("data", "half", "vector")
_JUNK = 0x33


def rebind(way: str, tensors: Sequence[torch.Tensor]) -> None:
    """Give every tensor other memory, and have what is free now written over.

    Args:
        way: one of WAYS: ``p.data = ...``, ``model.half()`` and back, ``vector_to_parameters``. Integers: as "data".
    """
    with torch.no_grad():
        for tensor in tensors:
            _rebind(way if tensor.is_floating_point() else "data", tensor)
        again = [torch.full((tensor.nbytes,), _JUNK, dtype=torch.uint8) for tensor in tensors for _ in range(2)]
    del again


def _rebind(way: str, tensor: torch.Tensor) -> None:
    dtype = tensor.dtype
    if way == "half":
        tensor.data = tensor.data.to(torch.float16 if dtype != torch.float16 else torch.float32)
        tensor.data = torch.zeros(tensor.shape, dtype=dtype)
    elif way == "vector":
        torch.nn.utils.vector_to_parameters(torch.zeros(tensor.numel(), dtype=dtype), [tensor])
    else:
        tensor.data = torch.full_like(tensor, 1)
