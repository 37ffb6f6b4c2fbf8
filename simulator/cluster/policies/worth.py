"""What a number of GPUs is worth to a job, as Pollux counts it (section 4.2).

The speed-up is goodput beside that with a fair share of the GPUs. A cluster's worth is the power mean of speed-ups with
exponent -1, their harmonic mean, which is largest where the sum of what they *cost*, 1 / (speed-up + 0.001), is least.
A speed-up for which a job has to be restarted counts for less: by the share of its life that restarts have left it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deeppart.plan.goodput import Bounds, Goodput, best_steps

Floats = npt.NDArray[np.float64]
#: Of the denominator: what no GPUs at all cost is finite.
_LEAST = 1e-3


class Worth:
    """What sizes are worth to one job.

    Example:
        >>> from deeppart_simulator.cluster.policies.worth import Worth
        >>> from deeppart.plan.goodput import Bounds
        >>> worth = Worth(None, Bounds(32, 32, 32), most=8, per_node=4)
        >>> round(worth.cost(1, 4, fair=2), 3), round(worth.cost(1, 4, fair=2, factor=0.5), 3)
        (1.996, 3.984)
    """

    def __init__(self, goodput: Goodput | None, bounds: Bounds, most: int, per_node: int) -> None:
        self._goodput, self._bounds = goodput, bounds
        self.most, self._per_node = most, per_node
        self._known: dict[tuple[int, int], float] = {(0, 0): 0.0}
        gpus = np.arange(1, most + 1)
        self._learn(-(-gpus // per_node), gpus)

    def cost(self, nodes: int, gpus: int, fair: int, factor: float = 1.0) -> float:
        """What the job contributes to the sum that is to be small."""
        return 1 / (self._goodput_of(nodes, gpus) / self._fair(fair) / self._per_node * factor + _LEAST)

    def costs(self, fair: int, factor: float) -> Floats:
        """The same for 0, 1... GPUs on as few nodes as can be."""
        sizes = range(self.most + 1)
        found = np.array([self._known[-(-gpus // self._per_node), gpus] for gpus in sizes])
        costs: Floats = 1 / (found / self._fair(fair) / self._per_node * factor + _LEAST)
        return costs

    def _fair(self, gpus: int) -> float:
        """Goodput of a fair share, on one node, or of the largest that the bounds allow."""
        most = max(1, self._bounds.most_batch // self._bounds.least_local)
        return max(self._goodput_of(1, min(gpus, most)), 1e-9)

    def _goodput_of(self, nodes: int, gpus: int) -> float:
        if (nodes, gpus) not in self._known:
            self._learn(np.array([nodes]), np.array([gpus]))
        return self._known[nodes, gpus]

    def _learn(self, nodes: npt.NDArray[np.int64], gpus: npt.NDArray[np.int64]) -> None:
        values = gpus if self._goodput is None else best_steps(self._goodput, nodes, gpus, self._bounds).goodput
        for each_nodes, each_gpus, value in zip(nodes.tolist(), gpus.tolist(), values.tolist(), strict=True):
            self._known[each_nodes, each_gpus] = float(value)
