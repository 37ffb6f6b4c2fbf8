"""Reed-Solomon coding: computes m blocks of parity from k blocks of data, and any of the k + m blocks from k others.

The code is systematic, with the Cauchy matrix that ISA-L generates (``gf_gen_cauchy1_matrix``): any k of its k + m rows
are independent (Blömer et al., ICSI TR-95-048, 1995). Row i < k is data block i itself, row k + j is parity block j.
With m = 1 the parity row is all ones: the exclusive or of the data, as in RAID-5 (docs/decisions/0007).

The interface of pyeclib takes and returns ``bytes`` with a header before each fragment: every byte is copied several
times, which costs more than the arithmetic (docs/decisions/0005-isal-without-copies.md). ISA-L itself works in place,
so it is called directly; the wheel of pyeclib contains it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import itertools
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
_TABLE_BYTES = 32  # size to which ISA-L expands a coefficient
_MOST_BLOCKS = 255
#: Block lengths are C ints.
_MOST_BLOCK_BYTES = 2**31 - 1
_SYSTEM_NAMES = ("isal",)


class ReedSolomon:
    """A code of k blocks of data and m blocks of parity. Thread-safe."""

    def __init__(self, data: int, parity: int) -> None:
        if data < 1 or parity < 1 or data + parity > _MOST_BLOCKS:
            raise ValueError(f"{data} blocks of data and {parity} of parity are not possible")
        self.data, self.parity = data, parity
        self._library = library()
        self._matrix = np.zeros((data + parity, data), dtype=np.uint8)
        self._library.gf_gen_cauchy1_matrix(self._matrix.ctypes.data, data + parity, data)
        if parity == 1:
            self._matrix[-1] = 1
        self._solving = functools.lru_cache(maxsize=256)(self._solve)

    def encode(self, data: Sequence[Bytes], parity: Sequence[Bytes]) -> None:
        """Compute all blocks of parity from all blocks of data."""
        self.rebuild(data, range(self.data), range(self.data, self.data + self.parity), parity)

    def rebuild(
        self, blocks: Sequence[Bytes], rows: Sequence[int], wanted: Sequence[int], out: Sequence[Bytes]
    ) -> None:
        """Compute blocks ``wanted`` into ``out`` from k other blocks, ``rows``. Releases the GIL."""
        right = len(blocks) == len(rows) == len(set(rows)) == self.data and len(wanted) == len(out)
        self._check(right and all(0 <= row < self.data + self.parity for row in (*rows, *wanted)), blocks, out)
        if self.parity == len(wanted) == 1 and wanted[0] not in rows:
            _exclusive_or(blocks, out[0])
        elif wanted:
            self._run(self._solving(tuple(rows), tuple(wanted)), blocks, out)

    def _solve(self, rows: tuple[int, ...], wanted: tuple[int, ...]) -> Bytes:
        """The tables for computing blocks ``wanted`` from blocks ``rows``."""
        known = np.ascontiguousarray(self._matrix[list(rows)])
        inverse = np.zeros_like(known)
        if self._library.gf_invert_matrix(known.ctypes.data, inverse.ctypes.data, self.data) != 0:
            raise AssertionError(f"rows {rows} of a Cauchy matrix are not independent")
        return self._tables(self._product(self._matrix[list(wanted)], inverse))

    def _product(self, left: Bytes, right: Bytes) -> Bytes:
        result = np.zeros((left.shape[0], right.shape[1]), dtype=np.uint8)
        for i, row in enumerate(left.tolist()):
            for j, column in enumerate(right.T.tolist()):
                for a, b in zip(row, column, strict=True):
                    result[i, j] ^= self._library.gf_mul(a, b)
        return result

    def _tables(self, coefficients: Bytes) -> Bytes:
        rows = np.ascontiguousarray(coefficients)
        tables = np.zeros(_TABLE_BYTES * rows.size, dtype=np.uint8)
        self._library.ec_init_tables(self.data, rows.shape[0], rows.ctypes.data, tables.ctypes.data)
        return tables

    def _run(self, tables: Bytes, sources: Sequence[Bytes], targets: Sequence[Bytes]) -> None:
        self._library.ec_encode_data(
            sources[0].size, len(sources), len(targets), tables.ctypes.data, _pointers(sources), _pointers(targets)
        )

    def _check(self, right: bool, sources: Sequence[Bytes], targets: Sequence[Bytes]) -> None:
        blocks = (*sources, *targets)
        right = right and all(block.flags.writeable for block in targets)
        lengths = {block.size for block in blocks}
        sound = all(block.dtype == np.uint8 and block.flags.c_contiguous for block in blocks)
        if not right or not sound or len(lengths) != 1 or max(lengths) > _MOST_BLOCK_BYTES:
            raise ValueError(f"not {self.data} + {self.parity} contiguous blocks of bytes of one length: {lengths}")


def _pointers(blocks: Sequence[Bytes]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(blocks))(*(block.ctypes.data for block in blocks))


def _exclusive_or(sources: Sequence[Bytes], target: Bytes) -> None:
    if len(sources) == 1:
        target[:] = sources[0]
        return
    np.bitwise_xor(sources[0], sources[1], out=target)
    for source in sources[2:]:
        np.bitwise_xor(target, source, out=target)


def check_available() -> None:
    """Raise ConfigError at start-up, rather than at the first use, if ISA-L is missing."""
    library()


@functools.cache
def library() -> ctypes.CDLL:
    """Load ISA-L. Its functions release the GIL."""
    tried = []
    # The bundled one first: searching the system starts processes, such as a compiler.
    for name in itertools.chain(_bundled(), filter(None, map(ctypes.util.find_library, _SYSTEM_NAMES))):
        try:
            return _declare(ctypes.CDLL(name))
        except (OSError, AttributeError) as error:
            tried.append(f"{name}: {error}")
    raise ConfigError(
        "the parity level needs Intel's ISA-L, which is not installed",
        expected="the wheel of pyeclib, which contains it, or libisal on the library path",
        found="; ".join(tried) or "neither",
        todo="pip install pyeclib (or the system's libisal2), or switch the parity level off",
    )


def _bundled() -> list[str]:
    """Paths of the library in the wheel of pyeclib."""
    try:
        files = metadata.files("pyeclib") or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(str(file.locate()))) for file in files if file.name.startswith("libisal")]


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("gf_gen_cauchy1_matrix", None, (pointer, number, number)),
        ("gf_invert_matrix", number, (pointer, pointer, number)),
        ("gf_mul", ctypes.c_ubyte, (ctypes.c_ubyte, ctypes.c_ubyte)),
        ("ec_init_tables", None, (number, number, pointer, pointer)),
        ("ec_encode_data", None, (number, number, number, pointer, pointer, pointer)),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
