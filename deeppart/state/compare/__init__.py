"""Compares leaves between ranks: which ranks have equal replicas, and when each leaf was last compared."""

from deeppart.state.compare.history import Divergence, Interval
from deeppart.state.compare.layout import StateLayout, derive
from deeppart.state.compare.optimizers import REGISTRY, OwnedTensors, holds_alone, trained_leaves
from deeppart.state.compare.replicas import DIGESTS, Differences, Replicas
from deeppart.state.compare.slices import SLICES, DeferredSlices
from deeppart.state.compare.structures import reconcile

__all__ = [
    "DIGESTS",
    "REGISTRY",
    "SLICES",
    "DeferredSlices",
    "Differences",
    "Divergence",
    "Interval",
    "OwnedTensors",
    "Replicas",
    "StateLayout",
    "derive",
    "holds_alone",
    "reconcile",
    "trained_leaves",
]
