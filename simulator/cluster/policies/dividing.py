"""Numbers of GPUs for jobs, of which the costs add up to least: exactly, but for where on nodes they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def divide(costs: Sequence[Floats], gpus: int) -> list[int]:
    """How many each job gets.

    Example:
        >>> import numpy as np
        >>> from deeppart_simulator.cluster.policies.dividing import divide
        >>> divide([np.array([9.0, 4.0, 3.0]), np.array([9.0, 5.0, 1.0])], gpus=3)
        [1, 2]
    """
    least = np.zeros(gpus + 1)
    taken = []
    for cost in costs:
        sizes = np.arange(min(cost.size, gpus + 1))
        left = np.arange(gpus + 1)[:, None] - sizes
        totals = np.where(left >= 0, least[np.maximum(left, 0)] + cost[sizes], np.inf)
        best = np.argmin(totals, axis=1)
        least = totals[np.arange(gpus + 1), best]
        taken.append(best)
    found, left_over = [], gpus
    for best in reversed(taken):
        found.append(int(best[left_over]))
        left_over -= found[-1]
    return found[::-1]
