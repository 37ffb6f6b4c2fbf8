"""What a policy is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..jobs import Job, Request

#: The node of each GPU of a job.
Allocation = tuple[int, ...]


class Policy(Protocol):
    """Decides, in each round, who has which GPUs."""

    def batch(self, request: Request) -> int | None:
        """The batch that a job keeps; None if it chooses it itself."""
        ...

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """The GPUs of each job from now on."""
        ...


class KeepsBatch:
    """What policies have in common under which jobs keep the batches of their users."""

    def __init__(self, nodes: int, per_node: int) -> None:
        self._nodes, self._per_node = nodes, per_node

    def batch(self, request: Request) -> int:
        """That of its user."""
        return request.batch


class Free:
    """GPUs that nobody has."""

    def __init__(self, nodes: int, per_node: int, held: Mapping[str, Allocation]) -> None:
        self._left = [per_node] * nodes
        for allocation in held.values():
            for node in allocation:
                self._left[node] -= 1

    def take(self, gpus: int) -> Allocation:
        """So many GPUs, from the emptiest nodes first."""
        taken: list[int] = []
        while len(taken) < gpus:
            node = max(range(len(self._left)), key=self._left.__getitem__)
            count = min(self._left[node], gpus - len(taken))
            self._left[node] -= count
            taken += [node] * count
        return tuple(taken)
