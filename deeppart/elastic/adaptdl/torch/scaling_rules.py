"""AdaptDL's scaling rules: those of :mod:`deeppart.elastic`, and a base class for others."""

from __future__ import annotations

from typing import Any

import numpy as np

from deeppart import elastic
from deeppart.elastic import AdamScale, AdaScale, LinearScale, NoiseScale, ScalingRule, SqrtScale
from deeppart.errors import ConfigError

from .data import current_dataloader

__all__ = ["AdaScale", "AdamScale", "LEGWScale", "LinearScale", "ScalingRuleBase", "SqrtScale"]


class ScalingRuleBase(ScalingRule):
    """Base class of a script's own rules; ``adp`` is the model, whose ``gns`` has the gradient noise."""

    adp: Any = None

    def scale_lr(self, scale: float) -> Any:
        """Factors of the learning rate: one for all parameter groups, or one for each."""
        raise NotImplementedError

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The result of :meth:`scale_lr` for each group."""
        found: list[float] = np.broadcast_to(self.scale_lr(scale), len(noise.by_group())).tolist()
        return found


class LEGWScale(ScalingRule):
    """As :class:`deeppart.elastic.LEGWScale`, with samples instead of steps per epoch."""

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        self._base_warmup_epochs, self._data_size = base_warmup_epochs, data_size

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """As :meth:`deeppart.elastic.LEGWScale.factors`."""
        loader = current_dataloader()
        if loader is None:
            raise ConfigError("the optimizer makes a step outside of a loop over a data loader")
        steps = self._data_size / loader.batch_size
        return elastic.LEGWScale(self._base_warmup_epochs, steps).factors(scale, noise, progress)
