"""Rules by which the learning rate follows the batch, and with which the optimizer makes its steps."""

from __future__ import annotations

import functools
import math
from types import MethodType
from typing import Any

import numpy as np
import torch

from deeppart.elastic.noise import LEAST_VARIANCE
from deeppart.plan.goodput.noise import gain

from ..errors import UsageError
from .loops import current_dataloader


class ScalingRuleBase:
    """A rule. :class:`AdaptiveDataParallel` makes ``optimizer.step()`` and ``optimizer.zero_grad()`` the rule's.

    While gradients are accumulated neither does anything, so that loops need not know of accumulation.
    """

    def __init__(self) -> None:
        self.adp: Any = None
        self._optimizer: Any = None
        self._original_step: Any = None

    def scale_lr(self, scale: float) -> Any:
        """Factors of the learning rate, one for all or one for each group."""
        raise NotImplementedError

    def initialize(self, adp: Any, optimizer: torch.optim.Optimizer, patch_optimizer: bool = False) -> None:
        """Work for a model and its optimizer."""
        self.adp, self._optimizer, self._original_step = adp, optimizer, optimizer.step
        if not patch_optimizer:
            return

        @functools.wraps(optimizer.step)
        def step(_: Any, *args: Any, **kwargs: Any) -> Any:
            return self.step(*args, **kwargs)

        @functools.wraps(optimizer.zero_grad)
        def zero_grad(_: Any, *args: Any, **kwargs: Any) -> None:
            self.zero_grad(*args, **kwargs)

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = MethodType(zero_grad, optimizer)  # type: ignore[method-assign]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients, unless they are accumulated."""
        if self.adp.gns.should_zero_grad:
            self.adp.gns.reset_accumulation(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step with the scaled rate, unless gradients are accumulated."""
        if self.adp is None:
            raise UsageError("a scaling rule belongs to no model", todo="give it to AdaptiveDataParallel")
        if not self.adp.require_backward_grad_sync:
            return None
        noise = self.adp.gns
        scale = noise.accum_scale * noise.accum_count
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        factors = np.broadcast_to(self.scale_lr(scale), len(groups))
        try:
            for group, rate, factor in zip(groups, rates, factors, strict=True):
                group["lr"] = rate * float(factor)
            result = self._original_step(*args, **kwargs)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        noise.set_progress(noise.get_progress() + noise.gain(scale))
        return result


class AdaScale(ScalingRuleBase):
    """The gain of each group (Johnson et al., ICML 2020)."""

    def scale_lr(self, scale: float) -> Any:
        """(variance + |G|^2) / (variance / scale + |G|^2)."""
        variances = np.maximum(self.adp.gns.raw_var_avg, LEAST_VARIANCE)
        squares = np.maximum(self.adp.gns.raw_sqr_avg, 0.0)
        return gain(squares, variances, scale)


class AdamScale(AdaScale):
    """The square root of the gain: for Adam, AdamW and RMSprop."""

    def scale_lr(self, scale: float, power: float = 0.5) -> Any:
        """The gain to a power."""
        return np.power(super().scale_lr(scale), power)


class LinearScale(ScalingRuleBase):
    """The scale (Goyal et al., 2017)."""

    def scale_lr(self, scale: float) -> Any:
        """The scale."""
        return scale


class SqrtScale(ScalingRuleBase):
    """The square root of the scale (Krizhevsky, 2014)."""

    def scale_lr(self, scale: float) -> Any:
        """Its square root."""
        return math.sqrt(scale)


class LEGWScale(ScalingRuleBase):
    """The square root of the scale, after a linear warm-up of ``scale`` times as many epochs (You et al., 2019)."""

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        super().__init__()
        self._base_warmup_epochs, self._data_size = base_warmup_epochs, data_size

    def scale_lr(self, scale: float) -> Any:
        """The root, or the part of it that the warm-up has come to."""
        loader = current_dataloader()
        if loader is None:
            raise UsageError("a step is made outside of a loop over a data loader")
        steps = self._base_warmup_epochs * scale * self._data_size / loader.batch_size
        progress = self.adp.gns.get_progress()
        return math.sqrt(scale) * (progress / steps if progress < steps else 1.0)
