"""Which ranks hold the same shard: what each has of a tensor, brought together in one place and judged there.

Every rank tells what it holds of a tensor to the rank that keeps the book on this tensor, which is found by the
tensor's path. So no rank hears of all shards: each gets about as much as one rank has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeppart.model.boxes import Box
from deeppart.plan.shards.cover import fault_of_cover


@dataclass(frozen=True, slots=True)
class Claim:
    """What one rank says that it holds of a tensor.

    Attributes:
        kind: the tensor's dtype and whole shape, as text.
        shape: its whole shape.
        boxes: the rank's shards that are not empty.
        ties: for each of them, what names the shard whose memory it shares; "" if it has memory of its own.
    """

    kind: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    ties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rank is told about its shards of a tensor.

    Attributes:
        holders: for each of its boxes, the ranks that have the same one, ascending.
        tied: for each, whether all of these share its memory with the same other shard.
    """

    holders: tuple[tuple[int, ...], ...]
    tied: tuple[bool, ...]


def judge(path: str, claims: Mapping[int, Claim]) -> dict[int, Verdict] | str:
    """Bring together what ranks hold of one tensor."""
    ranks = sorted(claims)
    first = claims[ranks[0]]
    for rank in ranks:
        if claims[rank].kind != first.kind:
            return f"{path} is {first.kind} on rank {ranks[0]}, {claims[rank].kind} on rank {rank}"
        outside = [box for box in claims[rank].boxes if not box.fits(first.shape)]
        if outside:
            return f"{path}, {first.kind}: rank {rank} has {outside[0]} of it, which lies outside"
        if len(set(claims[rank].boxes)) != len(claims[rank].boxes):
            return f"{path}, {first.kind}: rank {rank} has one shard of it twice"
    holders: dict[Box, list[int]] = {}
    ties: dict[Box, set[str]] = {}
    for rank in ranks:
        for box, tie in zip(claims[rank].boxes, claims[rank].ties, strict=True):
            holders.setdefault(box, []).append(rank)
            ties.setdefault(box, set()).add(tie)
    if fault := fault_of_cover(list(holders), first.shape):
        return f"{path}, {first.kind}: {fault}{_who(holders)}"
    sets = {box: tuple(found) for box, found in holders.items()}
    return {
        rank: Verdict(
            tuple(sets[box] for box in claim.boxes),
            tuple(len(ties[box]) == 1 and "" not in ties[box] for box in claim.boxes),
        )
        for rank, claim in claims.items()
    }


def _who(holders: Mapping[Box, Sequence[int]]) -> str:
    """The first shards and who has them."""
    shown = [f"{box} on rank {ranks[0]}" for box, ranks in sorted(holders.items())[:6]]
    return f" ({', '.join(shown)}{', ...' if len(holders) > 6 else ''})" if shown else " (no rank has any)"
