"""Where a stream of ``torch.save`` has its tensor, and of which dtype: read from its beginning, executing nothing.

The stream is a ZIP archive (APPNOTE 6.3.10) of stored records, each behind a local header; lengths come after the data.
``data.pkl`` comes first: a pickle that refers to storages by name, dtype and length. ``data/0`` is the first of them.
"""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass

import torch

from deeppart.state.tree.leaves import TORCH_DTYPES

#: Of a local header: signature, what is not needed here, length of the name, length of what follows it.
_HEADER = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_PICKLE, _STORAGE = b"/data.pkl", b"/data/0"
#: Classes that pickles of torch name.
_DTYPE_OF = {
    f"torch {name}Storage": dtype
    for name, dtype in {
        "Double": "float64",
        "Float": "float32",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "Long": "int64",
        "Int": "int32",
        "Short": "int16",
        "Char": "int8",
        "Byte": "uint8",
        "Bool": "bool",
        "ComplexDouble": "complex128",
        "ComplexFloat": "complex64",
    }.items()
}
_UNTYPED = "torch.storage UntypedStorage"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """The only storage of a stream.

    Attributes:
        start: its first byte in the stream.
        nbytes: how many it has.
        dtype: name of its dtype, as in :data:`~deeppart.state.tree.leaves.TORCH_DTYPES`.
    """

    start: int
    nbytes: int
    dtype: str


def find_tensor(head: bytes | bytearray) -> SavedTensor | None:
    """The tensor of a stream whose beginning is ``head``; None if it is not there, or not of a kind that is known.

    A guess that bytes of another kind can mislead, for choosing a codec.
    """
    at = head.find(_STORAGE)
    while at >= 0:
        begin = head.rfind(_SIGNATURE, 0, at)
        data = _data_of(head, begin, _STORAGE) if begin >= 0 else None
        first = _data_of(head, 0, _PICKLE)
        if data is not None and first is not None and first < begin:
            described = _described(bytes(head[first:begin]))
            return None if described is None else SavedTensor(data, *described)
        at = head.find(_STORAGE, at + 1)
    return None


def _data_of(head: bytes | bytearray, at: int, name: bytes) -> int | None:
    """Where the record begins whose local header is at ``at``, if it has a name that ends so."""
    if len(head) < at + _HEADER.size:
        return None
    signature, name_bytes, extra_bytes = _HEADER.unpack_from(head, at)
    end: int = at + _HEADER.size + name_bytes
    if signature != _SIGNATURE or not head[at + _HEADER.size : end].endswith(name):
        return None
    return end + int(extra_bytes)


def _described(pickled: bytes) -> tuple[int, str] | None:
    """Bytes and dtype of the one storage that a pickle refers to; what comes after the pickle does not matter."""
    kind, count, storages = "", 0, 0
    dtype = None
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "BINPERSID":
                storages += 1
                nbytes = count
            elif not storages and isinstance(argument, int) and not opcode.name.endswith(("PUT", "GET", "PROTO")):
                count = argument
            elif opcode.name == "GLOBAL" and not storages:
                kind = str(argument)
            elif opcode.name == "GLOBAL" and str(argument).partition(" ")[2] in TORCH_DTYPES:
                dtype = str(argument).partition(" ")[2]
    except Exception:  # of whatever kind: these are not the bytes of a pickle
        return None
    if storages != 1:
        return None
    if kind != _UNTYPED:
        dtype = _DTYPE_OF.get(kind)
        nbytes *= _itemsize(dtype)
    return None if dtype is None else (nbytes, dtype)


def _itemsize(dtype: str | None) -> int:
    return 0 if dtype is None else torch.empty(0, dtype=TORCH_DTYPES[dtype]).element_size()
