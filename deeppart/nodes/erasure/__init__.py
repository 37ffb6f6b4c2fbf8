"""Reed-Solomon coding over blocks of memory."""

from deeppart.nodes.erasure.isal import library
from deeppart.nodes.erasure.reed_solomon import ReedSolomon

__all__ = ["ReedSolomon", "check_available"]


def check_available() -> None:
    """Find out at start-up rather than at the first use."""
    library()
