"""Sharded tensors: which rank has what of them, and whether that is all. Pure."""

from deeppart.plan.shards.cover import fault_of_cover
from deeppart.plan.shards.holders import Claim, Verdict, judge
from deeppart.plan.shards.placing import Placed, Split, place_boxes
from deeppart.plan.shards.sharing import added_cost, in_order, least_usual_kappa, share_set

__all__ = [
    "Claim",
    "Placed",
    "Split",
    "Verdict",
    "added_cost",
    "fault_of_cover",
    "in_order",
    "judge",
    "least_usual_kappa",
    "place_boxes",
    "share_set",
]
