"""The policies, by name."""

from __future__ import annotations

from .fifo import Fifo
from .optimus import Optimus
from .policy import Policy
from .pollux import Pollux
from .tiresias import Tiresias

POLICIES = ("fifo", "tiresias", "optimus", "pollux")


def policy_of(name: str, nodes: int, per_node: int, restart_s: float) -> Policy:
    """A policy for a cluster."""
    found: dict[str, Policy] = {
        "fifo": Fifo(nodes, per_node),
        "tiresias": Tiresias(nodes, per_node),
        "optimus": Optimus(nodes, per_node),
        "pollux": Pollux(nodes, per_node, restart_s),
    }
    return found[name]
