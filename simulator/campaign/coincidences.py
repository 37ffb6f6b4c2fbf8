"""Losses that come together: a node is lost while another one's files have not been rebuilt yet.

A copy survives the loss of its node, not that of the partner as well. So of the failures that need a level on the
nodes, a share needs a higher level: those that strike while the storage that this level needs is already gone. Lost
storage is out for a *window*: until the job has come back and what was lost is rebuilt, and longer where other failures
interrupt that. With windows of W seconds and failures that come at random, one of n units, each lost at rate r, is
out with the probability

    p = 1 - exp(-r W)

independent of the others. A level that survives t losses of g nodes fails where t of the others are out, and the node
that is struck is not: one that is out has nothing more to lose. Counted are the failures that find it whole, that is
with t of the g out at most. Where it was not, the job has come back from a higher level, and everything is rebuilt.
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
    if out >= 1:  # nothing is ever rebuilt
        return 1.0
    places = placement(tuple(range(nodes)), protection, domain_nodes)
    if level == Level.PARTNER:
        return _pair_beyond(len(_partners(places, struck)), out)
    stays = 1.0
    for members, lost in Counter(places.group[place] for place in struck).items():
        stays *= 1 - _group_beyond(len(members), lost, protection.parity_tolerate, out)
    return 1 - stays


def _pair_beyond(partners: int, out: float) -> float:
    """With copies: along the ring of partners no two neighbours are out, where it is whole.

    Where each is out or not with odds of p to 1 - p, but never two neighbours, they are so one after the other: by the
    largest eigenvalue of the matrix of the odds, (1, 1; odds, 0).
    """
    odds = out / (1 - out)
    eigenvalue = (1 + math.sqrt(1 + 4 * odds)) / 2
    next_is_out = odds / eigenvalue**2
    return (1 - (1 - next_is_out) ** partners) / (1 + next_is_out)


def _group_beyond(members: int, lost: int, tolerate: int, out: float) -> float:
    """In a group of parity of which so many nodes are struck."""
    if lost > tolerate:
        return 1.0
    struck, others = _shares_out(lost, out), _shares_out(members - lost, out)
    whole = sum(_shares_out(members, out)[: tolerate + 1])
    beyond = sum(
        struck[already] * others[other]
        for already in range(lost + 1)
        for other in range(max(0, tolerate + 1 - lost), min(tolerate - already, members - lost) + 1)
    )
    return min(1.0, beyond / whole) if whole else 1.0


def _partners(places: Placement, struck: Sequence[int]) -> set[int]:
    """Nodes with copies of these nodes' parts, and those whose copies these have."""
    gone = set(struck)
    keepers = {places.partner[place] for place in struck}
    return (keepers | {place for place, keeper in enumerate(places.partner) if keeper in gone}) - gone


def _shares_out(count: int, out: float) -> list[float]:
    """The probabilities that so many of some independent nodes are out: none, one, and so on."""
    return [math.comb(count, k) * out**k * (1 - out) ** (count - k) for k in range(count + 1)]


def out_at_once(rate: float, window: float) -> float:
    """The probability that a given node's storage is out.

    Args:
        rate: at which this one node is lost, alone or with its group, per second.
        window: in seconds, as of :func:`window_s`.
    """
    return -math.expm1(-rate * window) if rate else 0.0
