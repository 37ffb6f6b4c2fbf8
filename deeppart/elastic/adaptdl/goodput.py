"""AdaptDL's goodput function, over :mod:`deeppart.plan.goodput`; its arguments may be numbers or numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deeppart.plan.goodput import Measured, Throughput, fit
from deeppart.plan.goodput.noise import gain

from .errors import UsageError

#: That of AdaptDL's objective, which :func:`deeppart.plan.goodput.fit` has by default 500 times as large.
_GROWTH_WEIGHT, _OVERLAP_WEIGHT = 1e-2, 1e-3
#: Batches that are compared, in equal ratios.
_COMPARED = 50
_CLOSE = 1e-8


class PerfParams(NamedTuple):
    """Those of :class:`deeppart.plan.goodput.Throughput`, in the same order."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


class GradParams(NamedTuple):
    """Squared norm of the gradient, and variance at the first batch."""

    sqr: float
    var: float


class GoodputFunction:
    """Useful samples per second of a job of some size with some batch."""

    def __init__(self, perf_params: Sequence[float], grad_params: Sequence[float], init_batch_size: int) -> None:
        self._perf_params, self._grad_params = PerfParams(*perf_params), GradParams(*grad_params)
        self._init_batch_size = init_batch_size

    def __call__(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        """As of :meth:`evaluate`."""
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        """The goodput."""
        batch = num_replicas * atomic_bsz * (accum_steps + 1)
        if not np.all(self._init_batch_size <= batch):
            raise UsageError(
                "a batch is smaller than the first one",
                expected=f"at least {self._init_batch_size:,} samples",
                found=f"{int(np.min(batch)):,}",
            )
        return self.throughput(num_nodes, num_replicas, atomic_bsz, accum_steps) * self.efficiency(batch)

    def throughput(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        """Samples per second."""
        alone_s = _predict_accum_time(self._perf_params, atomic_bsz)
        network_s = _predict_network_time(self._perf_params, num_nodes, num_replicas)
        step_s = np.exp(_predict_log_optim_time(self._perf_params, alone_s, network_s))
        return num_replicas * atomic_bsz * (accum_steps + 1) / (accum_steps * alone_s + step_s)

    def efficiency(self, batch_size: Any) -> Any:
        """What a sample of such a batch is worth, beside one of the first batch."""
        scale = batch_size / self._init_batch_size
        return gain(self._grad_params.sqr, self._grad_params.var, scale) / scale

    def optimize(
        self,
        num_nodes: Any,
        num_replicas: Any,
        max_batch_size: int | None = None,
        atomic_bsz_range: tuple[int | None, int | None] | None = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]:
        """The best batch for jobs of some sizes.

        Every replica has as many samples as the others. One alone only has more than the first batch if it accumulates:
        the noise of gradients comes from the differences of at least two of them.
        """
        first, most = self._init_batch_size, max_batch_size or self._init_batch_size
        if most < first or not np.all((np.less_equal(1, num_nodes)) & np.less_equal(num_nodes, num_replicas)):
            raise UsageError(
                "there is no best batch for this",
                expected=f"a batch of at least {first:,} samples, and 1 <= nodes <= replicas",
                found=f"at most {most:,}; nodes {num_nodes}, replicas {num_replicas}",
            )
        least_local, most_local = ((bound or None) for bound in atomic_bsz_range or (None, None))
        least_local, most_local = least_local or 1, most_local or most
        shape = np.broadcast(num_nodes, num_replicas).shape
        nodes, replicas = (np.broadcast_to(each, shape).ravel() for each in (num_nodes, num_replicas))
        batch = np.geomspace(np.maximum(first, least_local * replicas), most, _COMPARED)
        accum_steps, atomic_bsz = _divided(batch / replicas, replicas, first, most_local, accumulation=accumulation)
        atomic_bsz = np.clip(atomic_bsz, least_local, most_local)
        goodput = self.evaluate(nodes, replicas, atomic_bsz, accum_steps)
        best = np.argmax(goodput, axis=0), np.arange(goodput.shape[1])
        found = [each[best].reshape(shape) for each in (goodput, atomic_bsz, accum_steps)]
        scalar = np.isscalar(num_nodes) or np.isscalar(num_replicas)
        values = [each.item() if scalar else each for each in found]
        return values[0], values[1], values[2]


def fit_perf_params(
    num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_step_time: Any, optim_step_time: Any
) -> PerfParams:
    """The parameters whose times are nearest to those measured: arrays of one length, times in seconds."""
    columns = (np.atleast_1d(each) for each in (num_nodes, num_replicas, atomic_bsz, optim_step_time, accum_step_time))
    measured = [
        Measured(int(nodes), int(replicas), int(local), float(step_s), float(alone_s))
        for nodes, replicas, local, step_s, alone_s in zip(*columns, strict=True)
    ]
    found = fit(measured, growth_weight=_GROWTH_WEIGHT)
    return PerfParams(*(getattr(found, name) for name in Throughput.__dataclass_fields__))


def _divided(per_replica: Any, replicas: Any, first: int, most_local: int, *, accumulation: bool) -> tuple[Any, Any]:
    """(micro-batches beside the last, samples of each) for so many samples of a replica."""
    if not accumulation:
        local = np.where(replicas == 1, first, np.ceil(per_replica - _CLOSE))
        return np.zeros(local.shape, dtype=int), local.astype(int)
    accum_steps = np.ceil(per_replica / most_local - _CLOSE) - 1
    alone = (replicas == 1) & (per_replica > first + _CLOSE)
    accum_steps = np.where(alone, np.maximum(accum_steps, 1), accum_steps).astype(int)
    return accum_steps, np.ceil(per_replica / (accum_steps + 1) - _CLOSE).astype(int)


# --- names that AdaptDL's own tests use -------------------------------------------------------------------------------


def _predict_accum_time(params: Sequence[float], atomic_bsz: Any) -> Any:
    """Seconds of a micro-batch whose gradients are accumulated."""
    given = PerfParams(*params)
    return given.alpha_c + given.beta_c * atomic_bsz


def _predict_log_optim_time(params: Sequence[float], accum_time: Any, network_time: Any) -> Any:
    """Logarithm of the seconds of a micro-batch whose gradients are exchanged."""
    gamma = PerfParams(*params).gamma
    return np.logaddexp(gamma * np.log(accum_time), gamma * np.log(network_time)) / gamma


def _predict_network_time(params: Sequence[float], num_nodes: Any, num_replicas: Any) -> Any:
    """Seconds of the exchange by itself."""
    given = PerfParams(*params)
    places = [np.greater(num_nodes, 1), np.greater(num_replicas, 1)]
    constant = np.select(places, [given.alpha_n, given.alpha_r], _CLOSE)
    growing = np.select(places, [given.beta_n, given.beta_r], _CLOSE)
    return constant + growing * np.maximum(np.asarray(num_replicas) - 2, _CLOSE)


def _obj_fn(
    params: Sequence[float], num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_step_time: Any,
    optim_step_time: Any,
) -> float:  # fmt: skip
    """What AdaptDL minimises."""
    given = PerfParams(*params)
    alone_s = _predict_accum_time(given, atomic_bsz)
    log_step = _predict_log_optim_time(given, alone_s, _predict_network_time(given, num_nodes, num_replicas))
    growth = (given.beta_n / given.alpha_n) ** 2 + (given.beta_r / given.alpha_r) ** 2
    held = _OVERLAP_WEIGHT * (given.gamma - 1) ** 2 + _GROWTH_WEIGHT * growth
    return _rmse(np.log(alone_s), np.log(accum_step_time)) + _rmse(log_step, np.log(optim_step_time)) + held


def _rmse(predicted: Any, true: Any) -> float:
    return float(np.sqrt(np.mean((predicted - true) ** 2)))
