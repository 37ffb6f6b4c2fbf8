"""ElasticDataParallel with AdaptDL's API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch

from deeppart.elastic import ElasticDataParallel, ScalingRule
from deeppart.elastic.epochs import progress
from deeppart.errors import ConfigError, DeeppartWarning, warn_caller

from ..checkpoint import load_model, restored
from .data import write_scalars
from .scaling_rules import ScalingRuleBase


class AdaptiveDataParallel(ElasticDataParallel):
    """A model that is saved and loaded with its optimizer, and whose learning rate follows the batch size.

    While gradients are accumulated ``optimizer.step()`` and ``zero_grad()`` do nothing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: ScalingRule | None = None,
        name: str = "adaptdl-dataparallel",
        **options: Any,
    ) -> None:
        restored()
        super().__init__(model, optimizer, lr_scheduler, scaling_rule, scaler=mp_scaler, name=name, **options)
        if isinstance(self.rule, ScalingRuleBase):
            self.rule.adp = self
        self._accumulates = False
        self._step, self._zero_grad = optimizer.step, optimizer.zero_grad
        for method, function in ((optimizer.step, self._step_if_due), (optimizer.zero_grad, self.zero_grad)):
            setattr(optimizer, method.__name__, MethodType(_replace(method, function), optimizer))
        load_model(name, self)

    @property
    def gns(self) -> GradientNoiseScale:
        """The gradient noise."""
        return GradientNoiseScale(self)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module, with a warning if it is trained outside of a loop over a loader."""
        if progress.loader is None and self.training and torch.is_grad_enabled():
            warn_caller(
                "a model is trained outside of a loop over an AdaptiveDataLoader: its learning rate is not scaled, and "
                "the position in the data is not saved",
                DeeppartWarning,
            )
        return super().forward(*inputs, **named)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Clear gradients, unless they are accumulated."""
        if not self._accumulates:
            self._zero_grad(*arguments, **named)

    def _step_if_due(self, *arguments: Any, **named: Any) -> Any:
        self._accumulates = progress.loader is not None and not progress.loader.ends_step
        if not self._accumulates:
            return self._step(*arguments, **named)
        if self._scaler is not None:
            raise ConfigError(
                "a GradScaler would unscale accumulated gradients once for each micro-batch",
                expected="scaler.step(optimizer) and scaler.update() after the last micro-batch of a step",
                todo="call them only if adl.current_dataloader().is_optim_step()",
            )
        return None

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the gradient noise, gain and progress to a ``SummaryWriter``."""
        values = {
            "Gradient_Norm_Sqr": self.noise.squared_gradient(),
            "Gradient_Variance": self.noise.variance(),
            "Gain": self.gain,
            "Learning_Rate_Factor": float(np.mean(self.rule.factors(self.scale, self.noise, self.effective_steps))),
            "Progress": self.effective_steps,
        }
        write_scalars(writer, values, global_step, tag_prefix)


def _replace(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls ``function``, with the attributes by which learning rate schedulers recognize wrapping."""

    @functools.wraps(method)
    def replaced(_: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return replaced


class GradientNoiseScale:
    """The gradient noise of a model, for a script's own rules."""

    def __init__(self, model: ElasticDataParallel) -> None:
        self._model = model

    @property
    def raw_sqr_avg(self) -> Any:
        """|G|^2 of each parameter group."""
        return np.array([squared for squared, _ in self._model.noise.by_group()])

    @property
    def raw_var_avg(self) -> Any:
        """The variance of each parameter group at the first batch size."""
        return np.array([variance for _, variance in self._model.noise.by_group()])

    def sqr_avg(self) -> float:
        """|G|^2 over all parameters."""
        return self._model.noise.squared_gradient()

    def var_avg(self) -> float:
        """The variance over all parameters at the first batch size."""
        return self._model.noise.variance()

    def gain(self, scale: float) -> float:
        """Number of steps with the first batch size that a step at this scale is worth."""
        return self._model.noise.gain(scale)

    def get_progress(self) -> float:
        """Number of steps with the first batch size that the training so far is worth."""
        return self._model.effective_steps
