"""The noise of gradients, measured by hooks on parameters, and the accumulation of gradients.

The formulas are those of :mod:`deeppart.elastic.noise`. Measuring by hooks works with any model; it costs more than
:class:`deeppart.elastic.ElasticDataParallel`, which measures while gradients are exchanged.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.autograd import Variable

from deeppart.elastic.noise import LEAST_VARIANCE, SMOOTHING, Norms, of_two_steps
from deeppart.elastic.squared_norms import preconditioned_squared_norm, second_moments, squared_norm
from deeppart.plan.goodput.noise import gain

Floats = npt.NDArray[np.float64]


class GradientNoiseScale:
    """Averages of |G|^2 and of the variance, by group of parameters; they are saved with the optimizer's state."""

    def __init__(
        self,
        adp: Any,
        optimizer: torch.optim.Optimizer,
        mp_scaler: Any = None,
        num_replicas: int | None = None,
        accum_scale: float | None = None,
    ) -> None:
        self._adp, self._optimizer, self._mp_scaler = adp, optimizer, mp_scaler
        self._zero_grad = optimizer.zero_grad
        self._num_replicas = num_replicas if num_replicas is not None else dist.get_world_size()
        self._accum_scale = accum_scale or float(self._num_replicas)
        self._accum_count = 0
        self._should_zero_grad = True
        self._local: torch.Tensor | None = None  # float64[groups]: squared norms of this replica's micro-batches
        self._work: Any = None
        self._queued = False
        self._before: list[list[torch.Tensor | None]] | None = None
        groups = len(optimizer.param_groups)
        start = {"progress": 0.0, "sqr_avg": np.ones(groups), "var_avg": np.zeros(groups), "biased": False}
        optimizer.state.setdefault("gns", start)  # type: ignore[call-overload]
        for index, group in enumerate(optimizer.param_groups):
            for parameter in filter(lambda each: each.requires_grad, group["params"]):
                parameter.register_hook(functools.partial(self._has_gradient, index, parameter))

    @property
    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state["gns"]  # type: ignore[index]
        return found

    # --- accumulation -------------------------------------------------------------------------------------------------

    def reset_accumulation(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients, and what is known of them."""
        self._zero_grad(*args, **kwargs)
        self._local, self._accum_count = None, 0

    @property
    def should_zero_grad(self) -> bool:
        """False while gradients are accumulated."""
        return self._should_zero_grad

    @property
    def accum_scale(self) -> float:
        """Samples of a micro-batch of all replicas, by those of the first batch."""
        return self._accum_scale

    @property
    def accum_count(self) -> int:
        """Micro-batches since the last step."""
        return self._accum_count

    def set_accum_scale(self, accum_scale: float) -> None:
        """Note it; gradients of another scale are forgotten."""
        if not math.isclose(self._accum_scale, accum_scale, rel_tol=1e-5):
            self.reset_accumulation()
            self._accum_scale = accum_scale

    # --- the estimate -------------------------------------------------------------------------------------------------

    @property
    def raw_sqr_avg(self) -> Floats:
        """|G|^2 of each group; it may be negative."""
        return _read_only(self._state["sqr_avg"])

    @property
    def raw_var_avg(self) -> Floats:
        """The variance of each group at the first batch; it may be negative."""
        return _read_only(self._state["var_avg"])

    def sqr_avg(self) -> float:
        """|G|^2 of all parameters."""
        return float(np.sum(np.maximum(self._state["sqr_avg"], 0.0)))

    def var_avg(self) -> float:
        """The variance at the first batch, of all parameters."""
        return float(np.sum(np.maximum(self._state["var_avg"], LEAST_VARIANCE)))

    def gain(self, scale: float) -> float:
        """Steps with the first batch that one with so many times its samples is worth."""
        return float(gain(self.sqr_avg(), self.var_avg(), scale))

    def get_progress(self) -> float:
        """Steps with the first batch that the training is worth."""
        return float(self._state["progress"])

    def set_progress(self, progress: float) -> None:
        """Note it."""
        self._state["progress"] = progress

    # --- the measurement ----------------------------------------------------------------------------------------------

    def _has_gradient(self, group: int, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """The backward pass has computed a parameter's gradient, which is not exchanged yet."""
        if self._local is None:
            count = len(self._optimizer.param_groups)
            self._local = torch.zeros(count, dtype=torch.float64, device=gradient.device)
        self._local[group] += self._squared(group, parameter, gradient.detach())
        if not self._queued:
            Variable._execution_engine.queue_callback(self._after_backward)
        self._queued = True

    def _after_backward(self) -> None:
        """Gradients may not be exchanged yet: DistributedDataParallel's own callback can come after this one."""
        self._queued = False
        self._accum_count += 1
        self._should_zero_grad = bool(self._adp.require_backward_grad_sync)
        if self._should_zero_grad:
            if self._num_replicas > 1:
                self._work = dist.all_reduce(self._local, async_op=True)
            Variable._execution_engine.queue_callback(self._after_exchange)

    def _after_exchange(self) -> None:
        """The gradients of the step are complete: make them means, and take in their norms."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        gradients = [[parameter.grad for parameter in group["params"]] for group in self._optimizer.param_groups]
        for gradient in (each for group in gradients for each in group if each is not None):
            gradient.div_(self._accum_count)
        loss_scale = 1.0 if self._mp_scaler is None else float(self._mp_scaler.get_scale())
        of_mean = self._squared_groups(gradients) / loss_scale**2
        if not np.all(np.isfinite(of_mean)):
            warnings.warn("gradients are not finite: this step says nothing of their noise", stacklevel=2)
            return
        count, scale = self._num_replicas * self._accum_count, self._accum_scale * self._accum_count
        if count > 1:
            assert self._local is not None
            of_parts = self._local.cpu().numpy() / count / loss_scale**2
            self._before = None
            self._take_in(Norms(tuple(of_parts), tuple(of_mean), count, scale), biased=False)
            return
        before, self._before = self._before, _copied(gradients)
        if before is not None:
            both = self._squared_groups(_means(before, gradients)) / loss_scale**2
            of_before = self._squared_groups(before) / loss_scale**2
            self._take_in(of_two_steps(of_before.tolist(), of_mean.tolist(), both.tolist(), scale), biased=True)

    def _take_in(self, norms: Norms, *, biased: bool) -> None:
        state = self._state
        if state["biased"] and not biased:
            for name in ("sqr_sum", "var_sum", "weight"):
                state.pop(name, None)
        state["biased"] = biased
        keep = SMOOTHING**norms.scale
        weight = state["weight"] = keep * state.get("weight", 0.0) + (1 - keep)
        for name, values in (("sqr", norms.squared_gradient()), ("var", norms.variance())):
            total = keep * state.get(f"{name}_sum", 0.0) + (1 - keep) * np.array(values)
            state[f"{name}_sum"], state[f"{name}_avg"] = total, total / weight

    def _squared_groups(self, gradients: Sequence[Sequence[torch.Tensor | None]]) -> Floats:
        """float64[groups]: squared norms."""
        sums = []
        for index, (group, of_group) in enumerate(zip(self._optimizer.param_groups, gradients, strict=True)):
            known = [(one, each) for one, each in zip(group["params"], of_group, strict=True) if each is not None]
            squares = [self._squared(index, parameter, gradient) for parameter, gradient in known]
            sums.append(torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64))
        found: Floats = torch.stack([each.cpu() for each in sums]).numpy()
        return found

    def _squared(self, group: int, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """float64: the squared norm of a gradient, preconditioned as the optimizer does."""
        return squared_norm(gradient)


class AdamGradientNoiseScale(GradientNoiseScale):
    """The same of gradients as Adam preconditions them: divided by the root of their second moments."""

    def _squared(self, group: int, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        state = self._optimizer.state.get(parameter, {})
        moments = second_moments(state)
        if moments is None:
            return squared_norm(gradient)
        options = self._optimizer.param_groups[group]
        return preconditioned_squared_norm(gradient, moments, options, int(state.get("step", 0)))


def _read_only(values: Any) -> Floats:
    view = np.asarray(values, dtype=float).view()
    view.flags.writeable = False
    return view


def _copied(gradients: Sequence[Sequence[torch.Tensor | None]]) -> list[list[torch.Tensor | None]]:
    return [[None if each is None else each.detach().clone() for each in group] for group in gradients]


def _means(
    before: Sequence[Sequence[torch.Tensor | None]], now: Sequence[Sequence[torch.Tensor | None]]
) -> list[list[torch.Tensor | None]]:
    """Those of two steps; where only one has a gradient, that."""
    return [
        [
            (a + b) / 2 if a is not None and b is not None else a if b is None else b
            for a, b in zip(old, new, strict=True)
        ]
        for old, new in zip(before, now, strict=True)
    ]
