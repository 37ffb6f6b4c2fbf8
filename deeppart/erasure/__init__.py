"""Reed-Solomon coding over blocks of memory."""

from deeppart.erasure.reed_solomon import ReedSolomon

__all__ = ["ReedSolomon"]
