"""Finds and declares Intel's ISA-L, the library behind pyeclib's ``isa_l_rs_cauchy``.

pyeclib's own interface takes and returns ``bytes`` with a header before each fragment: every byte is copied several
times, which costs more than the arithmetic (docs/decisions/0005-isal-without-copies.md has the measurement). The
library itself works on memory where it lies, so it is called directly; pyeclib brings it along in its wheel. The
parity computed is the same, byte for byte.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import itertools
from importlib import metadata
from pathlib import Path

from deeppart.errors import ConfigError

_SYSTEM_NAMES = ("isal",)


@functools.cache
def library() -> ctypes.CDLL:
    """ISA-L, loaded. Its functions release the GIL while they run."""
    tried = []
    # To look for a library of the system starts processes, such as a compiler: only where none is bundled.
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
    """Copies of the library in the wheel of pyeclib."""
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
