"""Fits the throughput model to measured durations: least mean square error of logarithms (Pollux, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.elastic.goodput.model import LEAST_OVERLAP, MOST_OVERLAP, NOTHING_S, Throughput
from deeppart.errors import ConfigError

Floats = npt.NDArray[np.float64]
#: Additional starting points: seconds of each kind, as shares of the measured times; and the overlap.
_STARTS = ((0.5, 0.5, 0.1, 1.001), (0.5, 0.5, 0.5, 2.0), (0.05, 0.95, 0.5, 5.0))
#: A smaller overlap is preferred if the measurements do not determine it, and little growth with the ranks even if they
#: nearly do: with few ranks, growth mostly reflects their placement on nodes. AdaptDL has 0.01 for the second. With 5
#: the greatest error beyond 8 GPUs, on its published traces, is 10 % instead of 16, and at twice the ranks 12 %
#: instead of 29 if a job keeps one mean per size (docs/elastic.md).
_OVERLAP_WEIGHT, _GROWTH_WEIGHT = 1e-3, 5.0
#: Added to the mean square: its root has no derivative at 0.
_SMOOTH = 1e-10
_MOST_S = 1e5


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations of one kind of step.

    Attributes:
        nodes, ranks: size of the job.
        local_batch: samples of a rank's micro-batch.
        step_s: duration with the exchange of gradients; None if not measured.
        accumulated_s: without the exchange; None if not measured.

    Example:
        >>> from deeppart.elastic.goodput import Measured
        >>> Measured(nodes=1, ranks=4, local_batch=32, step_s=0.061, accumulated_s=0.042).ranks
        4
    """

    nodes: int
    ranks: int
    local_batch: int
    step_s: float | None
    accumulated_s: float | None = None


def fit(measured: Sequence[Measured], near: Throughput | None = None) -> Throughput:
    """The parameters with the least mean square error of the logarithms of durations.

    Parameters that no measurement determines stay near 0, with one exception: an unmeasured network between nodes is
    assumed to be a tenth slower than that within a node. The same measurements always give the same parameters.

    Args:
        measured: at least one duration.
        near: parameters of an earlier fit: the only starting point then, which is faster.

    Raises:
        ConfigError: nothing was measured, or scipy is missing.

    Example:
        >>> from deeppart.elastic.goodput import Measured, Throughput, fit
        >>> true = Throughput(0.02, 0.001, 0.03, 0.0003, 0.01, 0.0001, overlap=1.6)
        >>> sizes = [(1, 1), (1, 2), (1, 4), (2, 8), (4, 16)]
        >>> points = [(n, r, m) for n, r in sizes for m in (16, 32, 64)]
        >>> found = fit([Measured(*p, float(true.step_s(*p)), float(true.accumulated_s(p[2]))) for p in points])
        >>> round(float(found.step_s(8, 32, 32) / true.step_s(8, 32, 32)), 2)  # twice as many ranks as were measured
        1.0
    """
    data = _data(measured)
    lower, upper = _bounds(data)
    starts = _starts(data, lower, upper)
    if near is not None:
        starts = [_from_earlier(near, starts[1], lower, upper)]
    results = [_minimised(data, start, lower, upper) for start in starts]
    best = min(results, key=lambda result: result[0])[1]
    values = [*np.exp(best[:6]), min(max(float(best[6]), LEAST_OVERLAP), MOST_OVERLAP)]
    if not np.any(data.nodes > 1):
        values[2], values[3] = max(values[2], values[4] * 1.1), max(values[3], values[5] * 1.1)
    return Throughput(*map(float, values))


class _Data(NamedTuple):
    """Measurements as arrays; missing durations have weight 0."""

    nodes: Floats
    ranks: Floats
    local: Floats
    log_step: Floats
    step_weight: Floats
    log_accumulated: Floats
    accumulated_weight: Floats


def _data(measured: Sequence[Measured]) -> _Data:
    steps = np.array([0.0 if each.step_s is None else each.step_s for each in measured])
    accumulated = np.array([_alone_s(each) or 0.0 for each in measured])
    if not (np.any(steps > 0) or np.any(accumulated > 0)):
        raise ConfigError(
            "nothing was measured to fit a throughput model to", expected="at least one time above 0",
            found=f"{len(measured)} measurements", todo="train for some steps first",
        )  # fmt: skip
    return _Data(
        np.array([each.nodes for each in measured], dtype=float),
        np.array([each.ranks for each in measured], dtype=float),
        np.array([each.local_batch for each in measured], dtype=float),
        *_logarithms(steps),
        *_logarithms(accumulated),
    )


def _alone_s(each: Measured) -> float | None:
    """Duration of computing; a step of one rank consists only of that."""
    return each.step_s if each.accumulated_s is None and each.ranks == 1 else each.accumulated_s


def _logarithms(times: Floats) -> tuple[Floats, Floats]:
    known = times > 0
    weights = known.astype(float) / max(1, int(np.count_nonzero(known)))
    return np.log(np.where(known, times, 1.0)), weights


def _bounds(data: _Data) -> tuple[Floats, Floats]:
    """Lower and upper bounds: logarithms of six times, and the overlap. Undetermined parameters have equal bounds."""
    nothing = np.log(NOTHING_S)
    lower = np.array([nothing] * 6 + [LEAST_OVERLAP])
    upper = np.array([np.log(_MOST_S)] * 6 + [MOST_OVERLAP])
    if len(np.unique(data.local)) == 1:
        lower[0] = upper[0] = np.log(_typical(data) / 2)
    fixed = []
    if not np.any(data.nodes > 1):
        fixed += [2, 3]
    if not np.any((data.nodes == 1) & (data.ranks > 1)):
        fixed += [4, 5]
    if not np.any(data.ranks > 2):
        fixed += [3, 5]
    upper[fixed] = nothing
    return lower, upper


def _typical(data: _Data) -> float:
    """Approximate seconds of computing; of steps if nothing else is known."""
    if data.accumulated_weight.any():
        return float(np.exp(data.log_accumulated @ data.accumulated_weight))
    return float(np.exp(data.log_step @ data.step_weight))


def _starts(data: _Data, lower: Floats, upper: Floats) -> list[Floats]:
    typical, local = _typical(data), float(np.mean(data.local))
    starts = [np.array([*np.log([1e-1, 1e-2] * 3), LEAST_OVERLAP + 1e-3])]
    for constant, growing, network, overlap in _STARTS:
        times = [constant * typical, growing * typical / local] + [network * typical, 0.01 * network * typical] * 2
        starts.append(np.array([*np.log(times), overlap]))
    return [_clipped(start, lower, upper) for start in starts]


def _from_earlier(near: Throughput, otherwise: Floats, lower: Floats, upper: Floats) -> Floats:
    """The earlier parameters; those near 0, which were unmeasured, from ``otherwise``: the error is flat there."""
    times = (near.compute_s, near.sample_s, near.between_s, near.between_rank_s, near.within_s, near.within_rank_s)
    logarithms = np.log(np.maximum(times, NOTHING_S))
    start = np.array([*np.where(logarithms > np.log(2 * NOTHING_S), logarithms, otherwise[:6]), near.overlap])
    return _clipped(start, lower, upper)


def _clipped(start: Floats, lower: Floats, upper: Floats) -> Floats:
    return np.clip(start, lower, upper)


def _minimised(data: _Data, start: Floats, lower: Floats, upper: Floats) -> tuple[float, Floats]:
    try:
        from scipy.optimize import minimize
    except ModuleNotFoundError as error:
        raise ConfigError(
            "fitting a throughput model needs scipy", found="it is not installed",
            todo="pip install 'deeppart[elastic]'",
        ) from error  # fmt: skip
    found = minimize(
        _error, start, args=(data,), jac=True, method="L-BFGS-B", bounds=list(zip(lower, upper, strict=True)),
        options={"maxiter": 500},
    )  # fmt: skip
    return float(found.fun), np.asarray(found.x, dtype=float)


def _error(parameters: Floats, data: _Data) -> tuple[float, Floats]:
    """The minimised error, and its derivatives."""
    constant, growing, between, between_rank, within, within_rank = np.exp(parameters[:6])
    overlap = parameters[6]
    beyond = np.maximum(data.ranks - 2, NOTHING_S)
    is_between = data.nodes > 1
    is_within = ~is_between & (data.ranks > 1)
    computing = constant + growing * data.local
    network = np.where(
        is_between, between + between_rank * beyond, np.where(is_within, within + within_rank * beyond, NOTHING_S)
    )
    log_computing, log_network = np.log(computing), np.log(network)
    both = np.logaddexp(overlap * log_computing, overlap * log_network)
    share = np.exp(overlap * log_computing - both)  # of computing in the derivative of the step's logarithm
    step_error, step_slope = _root_mean_square(both / overlap - data.log_step, data.step_weight)
    computing_error, computing_slope = _root_mean_square(log_computing - data.log_accumulated, data.accumulated_weight)
    by_computing = step_slope * share / computing + computing_slope / computing
    by_network = step_slope * (1 - share) / network
    by_overlap = step_slope @ (share * log_computing + (1 - share) * log_network - both / overlap) / overlap
    growth = np.array([between_rank / between, within_rank / within])
    pulls = 2 * _GROWTH_WEIGHT * growth**2
    slopes = np.array([
        constant * by_computing.sum(),
        growing * (by_computing @ data.local),
        between * by_network[is_between].sum() - pulls[0],
        between_rank * (by_network[is_between] @ beyond[is_between]) + pulls[0],
        within * by_network[is_within].sum() - pulls[1],
        within_rank * (by_network[is_within] @ beyond[is_within]) + pulls[1],
        by_overlap + 2 * _OVERLAP_WEIGHT * (overlap - 1),
    ])  # fmt: skip
    held = _OVERLAP_WEIGHT * (overlap - 1) ** 2 + _GROWTH_WEIGHT * float(growth @ growth)
    return step_error + computing_error + held, slopes


def _root_mean_square(errors: Floats, weights: Floats) -> tuple[float, Floats]:
    """The root mean square, and its derivative by each error."""
    if not weights.any():
        return 0.0, np.zeros_like(errors)
    root = float(np.sqrt(errors**2 @ weights + _SMOOTH))
    return root, weights * errors / root
