"""The kind of groups that copies and parity keep apart, where nodes fail in groups of several kinds.

The library knows one domain a node (a switch, a rack), so one kind is kept apart as such. Which one: that for which
the failures that copies and parity do not survive are rarest. Groups of other kinds are often kept apart along with
it: a partner in another rack is on another switch of the rack, too. Those that are not need the file system.
"""

from __future__ import annotations

import math
from collections import Counter

from ..machine.record import Failures
from ..timing.stages import Protection
from .failures import group_count, nodes_of_group
from .survival import Placement, placement


def domain_nodes(failures: Failures, nodes: int, protection: Protection) -> int:
    """Nodes of a group of the kind that is kept apart; 0 where nodes do not fail in groups.

    Example:
        >>> from deeppart_simulator.campaign.domains import domain_nodes
        >>> from deeppart_simulator.machine.record import Failures, Group
        >>> from deeppart_simulator.timing.stages import Protection
        >>> kinds = {"switch": Group(nodes=2, mtbf=1e8), "power": Group(nodes=8, mtbf=1e9)}
        >>> domain_nodes(Failures(groups=kinds), 16, Protection(partner=True))  # racks of power have both
        8
        >>> domain_nodes(Failures(groups=kinds), 8, Protection(partner=True))  # there is no second one
        2
    """
    sizes = sorted({kind.nodes for kind in failures.kinds.values() if math.isfinite(kind.mtbf)})
    if len(sizes) < 2 or not (protection.partner or protection.parity_group):
        return sizes[0] if sizes else 0
    everyone = tuple(range(nodes))

    def lost_per_s(size: int) -> float:
        places = placement(everyone, protection, size)
        return sum(_lost_groups(kind.nodes, nodes, places, protection) / kind.mtbf for kind in failures.kinds.values())

    return min(sizes, key=lost_per_s)


def _lost_groups(size: int, nodes: int, places: Placement, protection: Protection) -> int:
    """Groups of a size whose loss neither copies nor parity survive."""
    return sum(
        not _survives(nodes_of_group(group, nodes, size), places, protection)
        for group in range(group_count(nodes, size))
    )


def _survives(struck: tuple[int, ...], places: Placement, protection: Protection) -> bool:
    gone = set(struck)
    if places.partner and all(places.partner[place] not in gone for place in struck):
        return True
    if not places.group:
        return False
    lost = Counter(places.group[place] for place in struck)
    return max(lost.values()) <= protection.parity_tolerate
