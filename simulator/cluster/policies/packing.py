"""GPUs of jobs on nodes. None has parts of two jobs that have others elsewhere: these would share its network."""

from __future__ import annotations

from .policy import Allocation


class Packing:
    """Who has which GPUs while they are shared out.

    Example:
        >>> from deeppart_simulator.cluster.policies.packing import Packing
        >>> packing = Packing(nodes=2, per_node=4)
        >>> packing.put(packing.place(5))
        >>> packing.place(2), packing.place(4)  # the second would have to share node 1 with the first
        ((1, 1), None)
    """

    def __init__(self, nodes: int, per_node: int) -> None:
        self._per_node = per_node
        self._free = [per_node] * nodes
        self._spread = [0] * nodes

    def place(self, gpus: int, scattered: int = 2) -> Allocation | None:
        """Where so many GPUs would be; None if nowhere."""
        if gpus <= self._per_node:
            enough = [(free, node) for node, free in enumerate(self._free) if free >= gpus]
            if enough:
                return (min(enough)[1],) * gpus
        allowed = [node for node, free in enumerate(self._free) if free and not self._spread[node]]
        allowed.sort(key=lambda node: (-self._free[node], node))
        found: dict[int, int] = {}
        left = gpus
        while left and allowed:
            fits = [node for node in allowed if self._free[node] >= left]
            node = min(fits, key=lambda node: (self._free[node], node)) if fits else allowed[0]
            allowed.remove(node)
            found[node] = min(left, self._free[node])
            left -= found[node]
        if left or len(found) > -(-gpus // self._per_node) + scattered:
            return None
        return tuple(node for node in sorted(found) for _ in range(found[node]))

    def fits(self, allocation: Allocation) -> bool:
        """Whether just these GPUs are free."""
        nodes = set(allocation)
        alone = len(nodes) == 1 or not any(self._spread[node] for node in nodes)
        return alone and all(self._free[node] >= allocation.count(node) for node in nodes)

    def put(self, allocation: Allocation) -> None:
        """Take these GPUs."""
        self._change(allocation, 1)

    def remove(self, allocation: Allocation) -> None:
        """Give them back."""
        self._change(allocation, -1)

    def _change(self, allocation: Allocation, sign: int) -> None:
        nodes = set(allocation)
        for node in nodes:
            self._free[node] -= sign * allocation.count(node)
            self._spread[node] += sign * (len(nodes) > 1)
