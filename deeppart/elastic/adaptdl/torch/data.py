"""Epochs, data loaders and accumulators with AdaptDL's API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import torch

from deeppart import elastic
from deeppart.elastic import stop_request
from deeppart.elastic.epochs import progress
from deeppart.errors import DeeppartWarning, warn_caller

from .. import env
from ..checkpoint import restored, save_all_states
from ..collective import Replicas, check_initialized


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """Iterate over the unfinished epochs below ``epoch``."""
    restored()
    return progress.remaining_epochs_until(epoch)


def finished_epochs() -> int:
    """Number of finished epochs."""
    restored()
    return progress.finished_epochs


def current_dataloader() -> AdaptiveDataLoader | None:
    """The loader of the current loop; None outside of loops."""
    loader = progress.loader
    return loader if isinstance(loader, AdaptiveDataLoader) else None


class AdaptiveDataLoader(elastic.ElasticDataLoader):
    """A loader that keeps its position; ``batch_size`` is that of all replicas together.

    After a stop request the job saves a checkpoint at the end of a step and exits with 143. With
    :meth:`autoscale_batch_size` a loop runs until the training has made as much progress as by one pass over the data
    with the first batch size, which may take several passes.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **options: Any) -> None:
        restored()
        options = {name: value for name, value in options.items() if value is not None}
        replicas = Replicas()
        if options.get("num_workers"):  # workers of different replicas need different random numbers
            seed = (torch.initial_seed() + replicas.rank) % (1 << 63)
            options.setdefault("generator", torch.Generator().manual_seed(seed))
        super().__init__(dataset, batch_size, shuffle=shuffle, ranks=replicas, **options)
        self._begin_autoscale: Any = None

    @property
    def batch_size(self) -> int:
        """The argument ``batch_size``."""
        return self.base_size

    @property
    def current_batch_size(self) -> int | None:
        """Samples of a step over all replicas; None outside of a loop."""
        return None if self._micro_batch is None else self.full_size

    @property
    def current_local_bsz(self) -> int | None:
        """Largest number of samples of a micro-batch; None outside of a loop."""
        return None if self._micro_batch is None else self._local(self.full_size)

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a step before the last one."""
        return self.batch.accumulation

    def is_optim_step(self) -> bool:
        """Whether the optimizer steps after this micro-batch."""
        return self.ends_step

    def is_accum_step(self) -> bool:
        """Whether gradients are accumulated after this micro-batch."""
        return not self.ends_step

    def autoscale_batch_size(  # type: ignore[override]
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Adapt the batch size to the gradient noise and step times, from the first loop on."""
        self._begin_autoscale = partial(
            super().autoscale_batch_size, max_batch_size, local_bsz_bounds, gradient_accumulation=gradient_accumulation
        )

    def __iter__(self) -> Iterator[Any]:
        """This replica's batches of the rest of the loop."""
        if self.ranks.size > 1:
            check_initialized()
        if self._begin_autoscale is not None:  # collective, so it needs the process group
            begin, self._begin_autoscale = self._begin_autoscale, None
            begin()
        while True:
            before, steps = self._effective_steps(), 0
            with closing(super().__iter__()) as batches:  # type: ignore[type-var]
                for batch in batches:
                    yield batch
                    steps += 1
                    if self._micro_batch is not None and self._micro_batch.ends_step:
                        if stop_request.should_stop():
                            _save_and_exit()
                        if self._is_epoch_done():
                            return
            trains = not steps or self._effective_steps() != before
            if not (self._may_repeat() and trains and len(self)) or self._is_epoch_done():
                return

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch sizes to a ``SummaryWriter``."""
        values = {
            "Total_Batch_Size": self.batch.size,
            "Local_Batch_Size": self._local(self.batch.size),
            "Accumulation_Steps": self.accumulation_steps,
        }
        write_scalars(writer, values, global_step, tag_prefix)

    def _local(self, size: int) -> int:
        return math.ceil(size / self.ranks.size / (self.batch.accumulation + 1))

    def _may_repeat(self) -> bool:
        """Whether a loop may take several passes over the data."""
        return self._autoscale is not None and progress.trained is not None and progress.current_epoch is not None

    def _is_epoch_done(self) -> bool:
        """Whether the training is as far as at the end of the epoch with the first batch size."""
        if not self._may_repeat():
            return False
        epochs = (progress.current_epoch or 0) + 1
        return self._effective_steps() >= self._sampler.length * epochs / self.base_size

    @staticmethod
    def _effective_steps() -> float:
        return 0.0 if progress.trained is None else float(progress.trained.effective_steps)


class Accumulator(elastic.Accumulator):
    """A dict of sums over all replicas; see :class:`deeppart.elastic.Accumulator`."""

    def __init__(self) -> None:
        restored()
        super().__init__(ranks=Replicas())


def write_scalars(writer: Any, values: Mapping[str, float], step: int, prefix: str) -> None:
    """Write values to a ``SummaryWriter`` under a prefix."""
    prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    for name, value in values.items():
        writer.add_scalar(f"{prefix}{name}", value, step)


def _save_and_exit() -> None:
    """Save a checkpoint and exit on all replicas (collective)."""
    save_all_states()
    if env.checkpoint_path() is None and env.replica_rank() == 0:
        warn_caller(
            "stopping without a checkpoint: neither ADAPTDL_CHECKPOINT_PATH nor DEEPPART_PERSISTENT_DIR names a "
            "directory. A restarted job begins from the start",
            DeeppartWarning,
        )
    stop_request.end_process(stop_request.EXIT_CODE)
