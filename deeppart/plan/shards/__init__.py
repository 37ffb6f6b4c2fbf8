"""Sharded tensors: which rank has what of them, and whether that is all. Pure."""

from deeppart.plan.shards.cover import fault_of_cover
from deeppart.plan.shards.holders import Claim, Verdict, judge
from deeppart.plan.shards.placing import Placed, Split, place_boxes

__all__ = ["Claim", "Placed", "Split", "Verdict", "fault_of_cover", "judge", "place_boxes"]
