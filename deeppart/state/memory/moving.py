"""Short copies by address, thousands at a time, for capture and restore."""

from __future__ import annotations

import ctypes

# PyDLL: the interpreter lock is not given up, and not waited for, around each of a thousand small copies.
#: ``memmove(target, source, length)``: addresses and bytes.
memmove = ctypes.PyDLL(None).memmove
memmove.argtypes, memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
