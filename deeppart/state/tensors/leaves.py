"""Leaves with bytes: which tensors and arrays can be stored, and how their elements are accessed as bytes.

A leaf's bytes are its elements in C order, without the rest of its storage.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, RestoreError, UnsupportedLeafError, short
from deeppart.model import Box
from deeppart.part import MAX_CHUNK_BYTES, MAX_LEAF_BYTES
from deeppart.state.values import known_conversion, plain_dtype

Bytes = npt.NDArray[np.uint8]
Array = torch.Tensor | npt.NDArray[Any]
_NUMPY_KINDS = frozenset("biufcSUmM")
#: Dimensions of an array, at most: numpy's limit, and that of most torch functions.
MOST_DIMENSIONS = 64
_DTYPE_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 complex128 complex64 complex32 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()
#: Storable torch dtypes by name, as files have them. Older torch releases lack some.
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
STORABLE_DTYPES = frozenset(_NAMES)
_ALLOWED_TYPES = (torch.Tensor, torch.nn.Parameter)
PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True)
class LeafType:
    """The type of one leaf, without its path and bytes.

    Attributes:
        kind: "torch" or "numpy".
        dtype: torch's name without ``torch.``, or numpy's dtype string ("<f4").
        shape: elements per dimension; () for a 0-dim array.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes per element; of a type from a file only after :meth:`check`."""
        return (TORCH_DTYPES[self.dtype] if self.kind == "torch" else np.dtype(self.dtype)).itemsize

    @property
    def is_whole(self) -> bool:
        """True for integers."""
        return "int" in self.dtype if self.kind == "torch" else np.dtype(self.dtype).kind in "iu"

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize

    @property
    def tag(self) -> str:
        """Name of the dtype in a part's chunk table, which codecs use; "" for types that are not plain numbers."""
        if self.kind == "torch":
            return self.dtype
        dtype = np.dtype(self.dtype)
        return dtype.name if dtype.kind in "biufc" and dtype.isnative else ""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of a tensor."""
        return TORCH_DTYPES[self.dtype]

    @classmethod
    def of(cls, data: Array, where: str) -> LeafType:
        """The type of a tensor or array whose elements are plain bytes.

        Raises:
            UnsupportedLeafError: it cannot be stored.
        """
        (check_tensor if isinstance(data, torch.Tensor) else check_array)(data, where)  # type: ignore[arg-type]
        return leaf_type(data)

    @classmethod
    def of_torch(cls, dtype: torch.dtype, shape: tuple[int, ...], where: str) -> LeafType:
        """The type of a tensor as a foreign file describes it.

        Raises:
            UnsupportedLeafError, CorruptFileError: it cannot be stored, or no tensor can have this type.
        """
        found = cls("torch", dtype_name(dtype, where), tuple(shape))
        found.check(where)
        return found

    def new(self) -> Array:
        """An uninitialized tensor or array on the CPU; its memory is not touched.

        Raises:
            RestoreError: there is not enough memory.
        """
        return new_array(self)

    def __str__(self) -> str:
        prefix = "" if self.kind == "torch" else "numpy "
        return f"{prefix}{self.dtype}{list(self.shape)}"

    def check(self, where: str) -> None:
        """Refuse a type read from a file that this library does not know."""
        try:
            good = _is_possible_shape(self.shape, self._known_itemsize())
        except (KeyError, ValueError, TypeError):
            good = False
        if not good:
            raise CorruptFileError(
                "a stored leaf has a type this library does not know",
                expected="a torch dtype of this torch release or a plain numpy dtype",
                found=f"kind {short(self.kind)}, dtype {short(self.dtype)}, shape {short(self.shape)}",
                where=where,
                todo="read it with the torch release that wrote it",
            )

    def _known_itemsize(self) -> int:
        """Bytes per element of a type from a file."""
        if self.kind == "torch":
            return TORCH_DTYPES[self.dtype].itemsize
        itemsize = plain_dtype(self.dtype).itemsize
        if self.kind != "numpy" or not 0 < itemsize <= MAX_CHUNK_BYTES:
            raise ValueError(self.dtype)
        return itemsize


def _is_possible_shape(shape: tuple[int, ...], itemsize: int) -> bool:
    """True if an array can have this shape. Even the strides of an empty array must be representable."""
    nbytes = itemsize
    for length in shape:
        if type(length) is not int or length < 0:
            return False
        nbytes *= max(1, length)
        if nbytes > MAX_LEAF_BYTES:
            return False
    return len(shape) <= MOST_DIMENSIONS


def leaf_type(data: Array) -> LeafType:
    """The type of a storable tensor or array."""
    if isinstance(data, torch.Tensor):
        return _torch_type(data.dtype, data.shape)
    return LeafType("numpy", data.dtype.str, tuple(data.shape))


@functools.lru_cache(maxsize=4096)
def _torch_type(dtype: torch.dtype, shape: torch.Size) -> LeafType:
    """Cached: thousands of leaves share a handful of types."""
    return LeafType("torch", _NAMES[dtype], tuple(shape))


def dtype_name(dtype: torch.dtype, where: str) -> str:
    """The name of a dtype in files."""
    if dtype not in _NAMES:
        raise UnsupportedLeafError(
            f"the state holds a tensor of dtype {dtype}, which this version cannot store",
            where=f"path {where}",
            todo="save its bytes under another dtype",
        )
    return _NAMES[dtype]


def has_type(data: Array, kind: LeafType) -> bool:
    """The same as ``leaf_type(data) == kind`` for a storable tensor or array, but faster."""
    if isinstance(data, torch.Tensor):
        return kind.kind == "torch" and data.shape == kind.shape and _NAMES[data.dtype] == kind.dtype
    return kind.kind == "numpy" and data.shape == kind.shape and data.dtype.str == kind.dtype


def check_tensor(tensor: torch.Tensor, where: str) -> None:
    """Refuse kinds of tensors whose elements are not simply their dense storage."""
    kind, todo = "", ""
    if torch.nn.parameter.is_lazy(tensor):
        kind = f"an {type(tensor).__name__}, which has no shape yet"
        todo = "run the module once, forward, before checkpoint or restore"
    elif not isinstance(tensor, _ALLOWED_TYPES) or type(tensor) not in _ALLOWED_TYPES:
        kind = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
        todo = known_conversion(tensor) or "save its local plain tensor"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, which has no data"
        todo = "materialize it first; a module's by to_empty() and its initialization"
    elif tensor.is_nested:
        kind = "a nested tensor of strided layout"
        todo = "save torch.nested.nested_tensor(x.unbind(), layout=torch.jagged), or x.unbind()"
    elif tensor.layout is not torch.strided:
        kind, todo = f"a tensor of layout {tensor.layout}", "save to_dense()"
    elif tensor.dtype not in _NAMES:
        kind, todo = f"a tensor of dtype {tensor.dtype}", "save its bytes under another dtype"
        if tensor.is_quantized:
            todo = "save int_repr() and the quantizer's parameters"
    elif tensor.device.type not in ("cpu", "cuda"):
        kind, todo = f"a tensor on {tensor.device}", "move it to the CPU"
    if kind:
        raise UnsupportedLeafError(
            f"the state holds {kind}, which this version cannot store",
            expected="a tensor on CPU or CUDA that is dense, sparse, quantized, jagged or a subclass with "
            "__tensor_flatten__",
            where=f"path {where}",
            todo=todo,
        )


def check_array(array: npt.NDArray[Any], where: str) -> None:
    """Refuse numpy arrays whose elements are not plain bytes."""
    sound = array.dtype.kind in _NUMPY_KINDS and array.dtype.itemsize > 0
    if type(array) is not np.ndarray or not sound:
        raise UnsupportedLeafError(
            f"the state holds a {type(array).__name__} of dtype {array.dtype}, which cannot be stored",
            expected="numpy.ndarray of a plain number, string or time dtype",
            where=f"path {where}",
            todo=known_conversion(array) or "save np.array(x); it is a copy: restore does not change x"
            if sound
            else "convert it; fields of a structured array can be saved one by one",
        )
    if array.dtype.itemsize > MAX_CHUNK_BYTES:
        raise UnsupportedLeafError(
            f"the state holds an array whose elements have {array.dtype.itemsize} bytes each, which cannot be stored",
            expected=f"at most {MAX_CHUNK_BYTES} bytes per element",
            found=f"dtype {array.dtype}",
            where=f"path {where}",
            todo="save long texts as str or bytes",
        )


def overlaps_itself(data: Array) -> bool:
    """True if several elements may have one address, as in an expanded tensor: writing to it would be ambiguous."""
    if is_flat(data):
        return False
    strides = data.stride() if isinstance(data, torch.Tensor) else [step // data.itemsize for step in data.strides]
    reach = 0
    for stride, length in sorted((abs(stride), length) for stride, length in zip(strides, data.shape, strict=True)):
        if length > 1 and stride <= reach:
            return 0 not in data.shape
        reach += stride * max(0, length - 1)
    return False


def new_array(kind: LeafType) -> Array:
    """A fresh, uninitialized CPU tensor or array of this type."""
    try:
        if kind.kind == "torch":
            # Made from bytes: torch warns about some dtypes when it makes a tensor of them.
            return (
                torch.empty(kind.nbytes, dtype=torch.uint8, device="cpu")
                .view(TORCH_DTYPES[kind.dtype])
                .view(kind.shape)
            )
        return np.empty(kind.shape, dtype=kind.dtype)
    except (MemoryError, RuntimeError, ValueError) as error:  # torch raises RuntimeError when memory is short
        raise RestoreError(
            "there is not enough memory for a leaf of the checkpoint",
            expected=f"{kind.nbytes} bytes for {kind}",
            found=str(error)[:200],
            todo="load less of it (keys=), or on a machine with more memory",
        ) from error


def array_over(octets: Bytes, kind: LeafType) -> Array:
    """A tensor or array of this type whose elements, in C order, are these bytes."""
    if kind.kind == "torch":
        return torch.from_numpy(octets).view(kind.torch_dtype).view(kind.shape)
    return octets.view(kind.dtype).reshape(kind.shape)


def is_flat(data: Array) -> bool:
    """True if the elements are in memory in C order without gaps, as stored (no pending conjugation)."""
    if isinstance(data, torch.Tensor):
        return data.is_contiguous() and not data.is_conj() and not data.is_neg()
    return bool(data.flags.c_contiguous)


def lies_flat_on_host(data: Array) -> bool:
    """True if the stored bytes are exactly the memory at the leaf's address in this process."""
    return (not isinstance(data, torch.Tensor) or data.is_cpu) and is_flat(data)


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous tensor as one dimension, in its memory.

    reshape(-1) may keep any stride if there is at most one element, and a stride other than 1 forbids byte views.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))


class HostMemory:
    """Bytes of this process at an address, for numpy to read and write. Only indexed bytes are accessed.

    Unlike ``Tensor.numpy()`` this does not mark the tensor: a storage that numpy has used can never be resized again.
    """

    def __init__(self, start: int, nbytes: int, keep: object = None) -> None:
        self.__array_interface__ = {"version": 3, "data": (start, False), "shape": (nbytes,), "typestr": "|u1"}
        self._keep = keep


def flat_bytes(data: Array) -> Bytes:
    """The bytes of a flat CPU leaf, without a copy; writable if the leaf is. They keep its memory alive."""
    if isinstance(data, torch.Tensor):
        nbytes = data.numel() * data.element_size()
        return (
            np.asarray(HostMemory(data.data_ptr(), nbytes, data.untyped_storage()))
            if nbytes
            else np.empty(0, dtype=np.uint8)
        )
    return data.reshape(-1).view(np.uint8)


def rectangles(shape: tuple[int, ...], start: int, stop: int) -> list[tuple[tuple[slice, ...], int]]:
    """Cut the C-order element range ``[start, stop)`` of an array into boxes that basic indexing can select.

    So a range of a non-contiguous array can be copied without making all of it contiguous.
    """
    return [(box.slices(), box.elements) for box in Box.of_range(shape, start, stop)]


def is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor's elements are simply its dense storage, with a storable dtype and device."""
    return not (
        type(tensor) not in PLAIN_TENSORS  # first: a ShardedTensor lacks the attributes below
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_meta
        or tensor.dtype not in STORABLE_DTYPES
        or not (tensor.is_cpu or tensor.is_cuda)
        or tensor.is_nested
    )
