"""Decides which bytes each rank saves: pure arithmetic that every rank does alone with the same result.

    plan = partition(leaves, ranks, kappa=None, strategy="deeppart", preload=None)
    plan.share(rank)

Nothing here uses torch, MPI, clocks, files or the environment. Reading order: ``cost`` (the cost of a share),
``leaves`` (the canonical order), ``strategies`` (the cuts, with the proof, and alternatives for comparison), ``plan``
(the result).
"""

from deeppart.model import LeafSpec, Share, Span
from deeppart.partition.cost import DEFAULT_KAPPA_BYTES, IntArray, usual_kappa, usual_kappa_of, whole_kappa
from deeppart.partition.leaves import Leaves
from deeppart.partition.plan import Plan, SpanTable, partition
from deeppart.partition.strategies import STRATEGIES

__all__ = [
    "DEFAULT_KAPPA_BYTES",
    "STRATEGIES",
    "IntArray",
    "LeafSpec",
    "Leaves",
    "Plan",
    "Share",
    "Span",
    "SpanTable",
    "partition",
    "usual_kappa",
    "usual_kappa_of",
    "whole_kappa",
]
