"""Rules by which the learning rate follows the batch: those of :mod:`deeppart.elastic`, and a base for others."""

from __future__ import annotations

from typing import Any

import numpy as np

from deeppart import elastic
from deeppart.elastic import AdamScale, AdaScale, LinearScale, NoiseScale, ScalingRule, SqrtScale
from deeppart.errors import ConfigError

from .data import current_dataloader

__all__ = ["AdaScale", "AdamScale", "LEGWScale", "LinearScale", "ScalingRuleBase", "SqrtScale"]


class ScalingRuleBase(ScalingRule):
    """A rule of a script's own, by :meth:`scale_lr`; ``adp`` is the model, whose ``gns`` has the noise."""

    adp: Any = None

    def scale_lr(self, scale: float) -> Any:
        """Factors of the learning rate, one for all or one for each group."""
        raise NotImplementedError

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """By :meth:`scale_lr`."""
        found: list[float] = np.broadcast_to(self.scale_lr(scale), len(noise.by_group())).tolist()
        return found


class LEGWScale(ScalingRule):
    """As of :class:`deeppart.elastic.LEGWScale`, by the number of samples instead of steps."""

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        self._base_warmup_epochs, self._data_size = base_warmup_epochs, data_size

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The root of the scale, or the part of it that the warm-up has come to."""
        loader = current_dataloader()
        if loader is None:
            raise ConfigError("a step is made outside of a loop over a data loader")
        steps = self._data_size / loader.batch_size
        return elastic.LEGWScale(self._base_warmup_epochs, steps).factors(scale, noise, progress)
