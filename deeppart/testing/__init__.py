"""Shipped with the library for those who test levels or states of their own, and for our own tests.

``states`` compares and clones nested states bit by bit, ``levels`` is the suite that every storage level passes,
``faults`` makes the operating system refuse chosen storage operations, ``strategies`` draws states for Hypothesis (the
only module that imports it).
"""

from deeppart.model import Attempt
from deeppart.storage.files import DurableFile
from deeppart.testing.faults import StorageFaults
from deeppart.testing.levels import LEVEL_CHECKS, Level, attempt
from deeppart.testing.states import Box, arrays, blank, difference

__all__ = [
    "LEVEL_CHECKS",
    "Attempt",
    "Box",
    "DurableFile",
    "Level",
    "StorageFaults",
    "arrays",
    "attempt",
    "blank",
    "difference",
]
