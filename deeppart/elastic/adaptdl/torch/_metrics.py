"""What a job measures of itself: times of its steps, the noise of its gradients, and its progress."""

from __future__ import annotations

import collections
import pickle
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from .. import env
from ..checkpoint import State, load_state
from ..goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params

#: Seconds from one fit to the next.
_FIT_EVERY_S = 30.0


class _MetricsState(State):
    """All of it, saved under one name."""

    def __init__(self) -> None:
        super().__init__("adaptdl-metrics")
        #: (nodes, replicas, samples of a micro-batch) -> counts and seconds.
        self.profile: dict[tuple[int, int, int], Any] = collections.defaultdict(collections.Counter)
        self.perf_params: PerfParams | None = None
        self.grad_params: GradParams | None = None
        self.init_batch_size: int | None = None
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: tuple[int | None, int | None] | None = None
        self.gradient_accumulation = False
        self.progress = 0.0
        self._step: _Step | None = None
        self._fitted_s: float | None = None
        self._of_models: dict[Any, tuple[float, float]] = {}

    _SAVED = (
        "profile", "perf_params", "grad_params", "init_batch_size", "max_batch_size", "local_bsz_bounds",
        "gradient_accumulation", "progress",
    )  # fmt: skip

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump({name: getattr(self, name) for name in self._SAVED}, fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        for name, value in pickle.load(fileobj).items():
            setattr(self, name, value)

    def begin_step(self, atomic_bsz: int) -> None:
        self._step = _Step(atomic_bsz)

    def add_sync_time(self, sync_time: float) -> None:
        if self._step is not None:
            self._step.sync_s += sync_time

    def end_step(self, accumulation_step: bool) -> None:
        assert self._step is not None, "begin_step() comes first"
        step, self._step = self._step, None
        counts = self.profile[env.num_nodes(), env.num_replicas(), step.atomic_bsz]
        step_s = time.perf_counter() - step.started_s
        if accumulation_step:
            counts.update({"accum_step_time": step_s, "accum_count": 1})
            return
        counts.update({"optim_step_time": step_s, "optim_sync_time": step.sync_s, "optim_count": 1})
        now = time.monotonic()
        self._fitted_s = now if self._fitted_s is None else self._fitted_s
        if env.replica_rank() == 0 and now - self._fitted_s > _FIT_EVERY_S:
            self.fit()
            self._fitted_s = now

    def fit(self) -> None:
        """Fit the throughput model to the kinds of steps that were measured whole."""
        known = {kind: counts for kind, counts in self.profile.items() if counts["optim_count"]}
        if not known:
            return
        nodes, replicas, local = (np.array(each) for each in zip(*known, strict=True))
        names = ("accum_step_time", "accum_count", "optim_step_time", "optim_sync_time", "optim_count")
        accum_s, accums, optim_s, sync_s, optims = (
            np.array([counts[name] for counts in known.values()], dtype=float) for name in names
        )
        # What a whole step takes beside the exchange is what an accumulated one takes.
        alone_s = (accum_s + np.maximum(optim_s - sync_s, 0.0)) / (accums + optims)
        self.perf_params = fit_perf_params(nodes, replicas, local, alone_s, optim_s / optims)

    def add_noise(self, model: Any, sqr: float, var: float) -> None:
        """Take in the noise of one of the models that are trained."""
        self._of_models[model] = (sqr, var)
        self.grad_params = GradParams(*(sum(each) for each in zip(*self._of_models.values(), strict=True)))


class _Step:
    """The step under way: samples of its micro-batch, when it began, and seconds of exchanges so far."""

    def __init__(self, atomic_bsz: int) -> None:
        self.atomic_bsz = atomic_bsz
        self.started_s = time.perf_counter()
        self.sync_s = 0.0


_state: _MetricsState | None = None


def _metrics_state() -> _MetricsState:
    global _state
    if _state is None:
        _state = _MetricsState()
        load_state(_state)
    return _state


def profile_step_start(atomic_bsz: int) -> None:
    """A step with so many samples begins."""
    _metrics_state().begin_step(atomic_bsz)


def profile_sync_time(sync_time: float) -> None:
    """So many seconds of it were spent on exchanging gradients."""
    _metrics_state().add_sync_time(sync_time)


def profile_step_commit(accumulation_step: bool = False) -> None:
    """It is done: count it."""
    _metrics_state().end_step(accumulation_step)


def update_grad_params(model: Any, grad_norm_sqr: float, grad_variance: float) -> None:
    """Note the noise of a model's gradients."""
    _metrics_state().add_noise(model, grad_norm_sqr, grad_variance)


def update_progress(progress: float) -> None:
    """Note how many steps with the first batch the training is worth."""
    _metrics_state().progress = progress


def get_progress() -> float:
    """How many steps with the first batch the training is worth."""
    return _metrics_state().progress


def set_batch_size(
    init_batch_size: int,
    max_batch_size: int | None,
    local_bsz_bounds: tuple[int | None, int | None] | None,
    gradient_accumulation: bool,
) -> None:
    """Note what batches may be."""
    state = _metrics_state()
    state.init_batch_size, state.max_batch_size = init_batch_size, max_batch_size
    state.local_bsz_bounds, state.gradient_accumulation = local_bsz_bounds, gradient_accumulation


def get_goodput_fn() -> GoodputFunction | None:
    """The goodput by what is known; None while too little is."""
    state = _metrics_state()
    if state.grad_params is None or state.perf_params is None or state.init_batch_size is None:
        return None
    perf_params: Sequence[float] = state.perf_params
    return GoodputFunction(perf_params, state.grad_params, state.init_batch_size)


def _fit_perf_params() -> None:
    _metrics_state().fit()
