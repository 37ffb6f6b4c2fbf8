"""Losses that come together: a node is lost while another one's files have not been rebuilt yet.

A copy survives the loss of its node, not that of the partner as well. So of the failures that need a level on the
nodes, a share needs a higher level: those that strike while the storage that this level needs is already gone. Lost
storage is out for a *window*: until the job has come back and what was lost is rebuilt, and longer where other failures
interrupt that. With windows of W seconds and failures that come at random, one of n units, each lost at rate r, is
out with the probability

    p = 1 - exp(-r W)

independent of the others; a level that survives t losses of g nodes fails where t of the g - 1 others are out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from deeppart.model import Level

from ..timing.stages import Protection
from .survival import Placement, placement

#: exp() of more is a job that never comes back.
_MOST_EXPONENT = 500.0


def window_s(rate: float, undisturbed_s: float) -> float:
    """How long lost storage is out, on average.

    Args:
        rate: of all failures, per second: each one begins the restart, and the rebuilding, once more.
        undisturbed_s: to come back and to rebuild, where nothing strikes meanwhile.
    """
    if not rate:
        return undisturbed_s
    exponent = rate * undisturbed_s
    return math.inf if exponent > _MOST_EXPONENT else math.expm1(exponent) / rate


def share_beyond(
    level: str, struck: Sequence[int], nodes: int, out: float, protection: Protection, domain_nodes: int
) -> float:
    """The share of failures striking these nodes that a level on the nodes does not survive, though it would alone.

    Args:
        level: partner or parity.
        struck: nodes of the failure, one at least.
        nodes: of the job.
        out: the probability that a given other node's storage is out.
        domain_nodes: nodes that share a switch or rack; 0 where that is not known.
    """
    places = placement(tuple(range(nodes)), protection, domain_nodes)
    if level == Level.PARTNER:
        return 1 - (1 - out) ** len(_partners(places, struck))
    stays = 1.0
    for members, lost in Counter(places.group[place] for place in struck).items():
        stays *= 1 - _at_least(protection.parity_tolerate + 1 - lost, len(members) - lost, out)
    return 1 - stays


def _partners(places: Placement, struck: Sequence[int]) -> set[int]:
    """Nodes with copies of these nodes' parts, and those whose copies these have."""
    gone = set(struck)
    keepers = {places.partner[place] for place in struck}
    return (keepers | {place for place, keeper in enumerate(places.partner) if keeper in gone}) - gone


def _at_least(wanted: int, count: int, probability: float) -> float:
    """That so many of some independent things are so, or more."""
    if wanted <= 0:
        return 1.0
    terms = (math.comb(count, k) * probability**k * (1 - probability) ** (count - k) for k in range(wanted))
    return max(0.0, 1 - sum(terms))


def out_at_once(rate: float, window: float) -> float:
    """The probability that a given node's storage is out.

    Args:
        rate: at which this one node is lost, alone or with its group, per second.
        window: in seconds, as of :func:`window_s`.
    """
    return -math.expm1(-rate * window) if rate else 0.0
