"""How well the throughput model and the noise of gradients predict what AdaptDL's published traces have measured.

    python -m benchmarks.elastic_goodput

The traces are those of the branch osdi21-artifact of https://github.com/petuum/adaptdl, which come with the simulator:
six trainings on up to 64 GPUs. For each of them: the step time on 9 to 16 GPUs, and on all numbers beyond 8, when the
model is fitted to all placements on up to 8; the same where a job keeps one mean for each number of nodes, GPUs and
samples; and the statistical efficiency at four times the first batch, from the noise that was measured with the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from deeppart_simulator.cluster.applications import SETTINGS, Application, Archive, Timing, read_application

from deeppart.elastic.goodput import GradientNoise, Measured, Throughput, fit

FITTED = 8


@dataclass(frozen=True)
class Errors:
    """Of one training; shares of what was measured, the mean of absolute values.

    Attributes:
        name: of it.
        twice: step time on 9 to 16 GPUs, each placement.
        beyond: on 9 to 64.
        twice_of_means, beyond_of_means: the same of means over placements, fitted to such means.
        efficiency: at four times the first batch, in absolute terms, the mean over epochs.
    """

    name: str
    twice: float
    beyond: float
    twice_of_means: float
    beyond_of_means: float
    efficiency: float


def errors_of(application: Application) -> Errors:
    """The errors of one training."""
    placed = [_measured(timing) for timing in application.timings if timing.placement is not None]
    scaled = [_measured(timing) for timing in application.timings if timing.placement is None]
    found: list[float] = []
    for rows in (placed, _means(placed)):
        model = fit([each for each in rows if each.ranks <= FITTED])
        far = [each for each in rows + scaled if each.ranks > FITTED]
        near = [each for each in rows if FITTED < each.ranks <= 2 * FITTED]
        found += [_error(model, near), _error(model, far)]
    twice, beyond, twice_of_means, beyond_of_means = found
    efficiency = _efficiency_error(application)
    return Errors(application.name, twice, beyond, twice_of_means, beyond_of_means, efficiency)


def _measured(timing: Timing) -> Measured:
    step_s, sync_s = timing.times
    return Measured(timing.nodes, timing.gpus, timing.local_batch, step_s, step_s - sync_s)


def _means(rows: Sequence[Measured]) -> list[Measured]:
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        assert row.step_s is not None and row.accumulated_s is not None
        groups[row.nodes, row.ranks, row.local_batch].append((row.step_s, row.accumulated_s))
    return [Measured(*size, *map(float, np.mean(times, axis=0))) for size, times in groups.items()]


def _error(model: Throughput, rows: Sequence[Measured]) -> float:
    predicted = np.array([float(model.step_s(row.nodes, row.ranks, row.local_batch)) for row in rows])
    return float(np.mean(np.abs(predicted / np.array([row.step_s for row in rows]) - 1)))


def _efficiency_error(application: Application) -> float:
    """Predicted from the training with the first batch; what that with the larger one then had."""
    first, larger = application.batch, 4 * application.batch
    differences = []
    for epoch in range(application.settings.epochs):
        pairs = (application.noise(batch, epoch) for batch in (first, larger))
        predicted, had = (float(GradientNoise(sqr, var, first).efficiency(larger)) for sqr, var in pairs)
        differences.append(abs(predicted - had))
    return float(np.mean(differences))


def main() -> None:
    """Print the table."""
    archive = Archive()
    print("error of the step time, fitted on up to 8 GPUs        | efficiency at 4x")
    print("             9 to 16   9 to 64   of means: to 16   to 64 | the first batch")
    for name in SETTINGS:
        found = errors_of(read_application(archive, name))
        print(
            f"{name:12} {found.twice:7.1%}   {found.beyond:7.1%}   {found.twice_of_means:15.1%} "
            f"{found.beyond_of_means:7.1%} | {found.efficiency:10.3f}"
        )


if __name__ == "__main__":
    main()
