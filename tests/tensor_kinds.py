"""Tensors that are made of others, of every kind that a state may hold."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

from deeppart.state.tensors.composites import decompose
from tests.states import array_bytes, value_bits

#: A NaN with a payload, whose bits arithmetic would not keep.
NAN = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32)


class Colour(enum.Enum):
    RED = 1


@dataclass
class Settings:
    size: int
    colour: Colour


class Described(torch.Tensor):
    """A subclass whose context is given to it."""

    a: torch.Tensor
    context: Any

    @staticmethod
    def __new__(cls, a: torch.Tensor, context: Any = None) -> Described:
        made: Described = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        return made

    def __init__(self, a: torch.Tensor, context: Any = None) -> None:
        self.a, self.context = a, context

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a"], self.context

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Described:
        return Described(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return Described(arguments[0].a.detach(), arguments[0].context)
        raise NotImplementedError(function)


def coo(seed: int = 1, nnz: int = 4) -> torch.Tensor:
    """Not coalesced: one place has two values, and the order is none."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(nnz, generator=generator)
    values[:1] = NAN
    indices = torch.randint(0, 5, (2, nnz), generator=generator)
    indices[:, -1] = indices[:, 0]
    return torch.sparse_coo_tensor(indices, values, (5, 6), check_invariants=True)


def dense(seed: int = 1, nnz: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.zeros(4, 6)
    found.view(-1)[torch.randperm(24, generator=generator)[:nnz]] = 1 + torch.rand(nnz, generator=generator)
    return found


def csr(seed: int = 1, nnz: int = 5) -> torch.Tensor:
    """With indices of 32 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dense(seed, nnz).to_sparse_csr()
        return torch.sparse_csr_tensor(found.crow_indices().int(), found.col_indices().int(), found.values(), (4, 6))


def batched_bsr(seed: int = 1) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, 4, 6, generator=generator).to_sparse_bsr((2, 3))


def unsorted_csr(seed: int = 1) -> torch.Tensor:
    """torch makes such tensors, and works with them, though its own check of invariants refuses them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.tensor([1.0, 2.0]) * seed
        return torch.sparse_csr_tensor(torch.tensor([0, 2, 2]), torch.tensor([2, 0]), values, (2, 3))


def quantized(seed: int = 1, dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    ints = torch.randint(0, 100, (3, 4), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(ints * 0.1 * seed, 0.1 * seed, seed, dtype)


def by_channels(seed: int = 1, floats: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(4, generator=generator, dtype=torch.float32 if floats else torch.float64) + 0.1
    zeros = torch.rand(4, generator=generator) if floats else torch.randint(0, 9, (4,), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_channel(torch.randn(3, 4, generator=generator), scales, zeros, 1, torch.quint8)


def jagged(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = (2, 0, 3) if seed % 2 else (1, 4, 2)
    items = [torch.randn(length, 3, generator=generator) for length in lengths]
    made: torch.Tensor = torch.nested.nested_tensor(items, layout=torch.jagged)
    return made


def with_holes(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(3, 6, 2, generator=generator)
    made: torch.Tensor = torch.nested.narrow(
        plain, 1, torch.tensor([0, 1, 2]), torch.tensor([2, 3, 1]), layout=torch.jagged
    )
    return made


def two(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return TwoTensor(torch.randn(3, generator=generator), torch.randn(3, generator=generator))


def four(seed: int = 1) -> torch.Tensor:
    return TwoTensor(two(seed), two(seed + 100))


#: Each takes a seed.
KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "coo": coo,
    "coo, coalesced": lambda seed: torch.sparse_coo_tensor(
        torch.tensor([[0, 1]]), torch.ones(2, 3) * seed, (4, 3), is_coalesced=True, check_invariants=True
    ),
    "coo, empty": lambda seed: torch.sparse_coo_tensor(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(0), (3, 4), check_invariants=True
    ),
    "coo, parameter": lambda seed: torch.nn.Parameter(coo(seed)),
    "csr": csr,
    "csr, unsorted": unsorted_csr,
    "csc": lambda seed: dense(seed).to_sparse_csc(),
    "bsr": batched_bsr,
    "bsc": lambda seed: torch.ones(4, 6).mul(seed).to_sparse_bsc((2, 3)),
    "quint8": quantized,
    "qint8": lambda seed: quantized(seed, torch.qint8),
    "qint32": lambda seed: quantized(seed, torch.qint32),
    "channels": by_channels,
    "channels, floats": lambda seed: by_channels(seed, floats=True),
    "jagged": jagged,
    "jagged, transposed": lambda seed: jagged(seed).transpose(1, 2),
    "jagged, with holes": with_holes,
    "subclass": two,
    "subclass of subclasses": four,
    "subclass, parameter": lambda seed: torch.nn.Parameter(two(seed)),
    "subclass, with context": lambda seed: Described(
        torch.ones(3) * seed, {"s": Settings(3, Colour.RED), "sizes": [1, (2, torch.Size([3]))], "dtype": torch.int8}
    ),
}


def bits(item: Any) -> Any:
    """All that a tensor is, to the last bit, as something that can be compared."""
    if isinstance(item, torch.Tensor):
        parts = decompose(item, "")
        if parts is not None:
            return parts.kind, parts.name, {key: bits(each) for key, each in parts.items.items()}
        return str(item.dtype), tuple(item.shape), array_bytes(item)
    if isinstance(item, dict):
        return {key: bits(each) for key, each in item.items()}
    if type(item) in (list, tuple):
        return type(item).__name__, [bits(each) for each in item]
    return value_bits(item)
