"""Shipped with the library for those who test levels or states of their own, and for our own tests.

``states`` compares and clones nested states bit by bit, ``levels`` and ``stores`` are the suites that every level and
every store passes, ``faults`` makes the operating system refuse chosen storage operations, ``strategies`` draws states
for Hypothesis (the only module that imports it).
"""

from deeppart.model import Attempt
from deeppart.part import StoredBytes
from deeppart.storage import DurableFile, Stat, Store, Writer
from deeppart.testing.faults import StorageFaults
from deeppart.testing.levels import LEVEL_CHECKS, Level, attempt
from deeppart.testing.states import Box, arrays, blank, difference
from deeppart.testing.stores import STORE_CHECKS

__all__ = [
    "LEVEL_CHECKS",
    "STORE_CHECKS",
    "Attempt",
    "Box",
    "DurableFile",
    "Level",
    "Stat",
    "StorageFaults",
    "Store",
    "StoredBytes",
    "Writer",
    "arrays",
    "attempt",
    "blank",
    "difference",
]
