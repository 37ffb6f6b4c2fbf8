"""The nodes that store copies and parity for each other, and the layout of parity. Pure: no torch, MPI, clock or
file.
"""

from deeppart.plan.redundancy.node_groups import Nodes, parity_groups, partner_nodes
from deeppart.plan.redundancy.placement import Copy, Member, ParitySet, parity_sets, partner_copies
from deeppart.plan.redundancy.stripes import ROWS_AT_ONCE, Stripes, block_bytes_for

__all__ = [
    "ROWS_AT_ONCE",
    "Copy",
    "Member",
    "Nodes",
    "ParitySet",
    "Stripes",
    "block_bytes_for",
    "parity_groups",
    "parity_sets",
    "partner_copies",
    "partner_nodes",
]
