"""Epochs, data loaders and sums that go on where they were, by AdaptDL's names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import torch

from deeppart import elastic
from deeppart.elastic import stop_request
from deeppart.elastic.progress import progress
from deeppart.errors import ConfigError, DeeppartWarning, warn_caller

from .. import env
from ..checkpoint import found, save_all_states
from ..collective import Replicas, refuse_unconnected

#: Loaders and sums that were made in the epoch under way, which are forgotten with it.
_of_epoch: list[str] = []


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """The epochs that are not over yet, up to ``epoch``, exclusively."""
    found()
    with closing(progress.remaining_epochs_until(epoch)) as epochs:  # type: ignore[type-var]
        for each in epochs:
            while _of_epoch:
                progress.forget(_of_epoch.pop())
            yield each


def finished_epochs() -> int:
    """Epochs that are over."""
    found()
    return progress.finished_epochs


def current_dataloader() -> AdaptiveDataLoader | None:
    """The loader of the loop that is under way; None outside of loops."""
    loader = progress.loader
    return loader if isinstance(loader, AdaptiveDataLoader) else None


class AdaptiveDataLoader(elastic.ElasticDataLoader):
    """A loader whose ``batch_size`` is that of all replicas together, and which goes on where it was.

    After any of its steps the job may end, with a checkpoint and exit code 143, if it was told to. With
    :meth:`autoscale_batch_size` a loop lasts until the training has made as much progress as by one pass over the data
    with the first batch, which may be several passes.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **options: Any) -> None:
        found()
        options = {name: value for name, value in options.items() if value is not None}
        replicas = Replicas()
        if options.get("num_workers"):  # workers of no two replicas draw the same random numbers
            seed = (torch.initial_seed() + replicas.rank) % (1 << 63)
            options.setdefault("generator", torch.Generator().manual_seed(seed))
        super().__init__(dataset, batch_size, shuffle=shuffle, name=_name("loader"), ranks=replicas, **options)
        self._begin_autoscale: Any = None

    @property
    def batch_size(self) -> int:
        """As it was given."""
        return self.base_size

    @property
    def current_batch_size(self) -> int | None:
        """Samples of a step, all replicas together; None outside of a loop."""
        return None if self._micro_batch is None else self.whole_size

    @property
    def current_local_bsz(self) -> int | None:
        """The most samples of a micro-batch of a replica; None outside of a loop."""
        return None if self._micro_batch is None else self._local(self.whole_size)

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a step beside the last one."""
        return self.batch.accumulation

    def is_optim_step(self) -> bool:
        """Whether the optimizer makes a step after this micro-batch."""
        return self.ends_step

    def is_accum_step(self) -> bool:
        """Whether the gradients of this micro-batch are accumulated."""
        return not self.ends_step

    def autoscale_batch_size(  # type: ignore[override]
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the batch follow what the training measures of itself, from the first loop on."""
        self._begin_autoscale = partial(
            super().autoscale_batch_size,
            max_batch_size,
            local_bsz_bounds,
            gradient_accumulation=gradient_accumulation,
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches of this replica that are left of the loop."""
        if self.ranks.size > 1:
            refuse_unconnected()
        if self._begin_autoscale is not None:  # collective: replicas may not be connected earlier
            begin, self._begin_autoscale = self._begin_autoscale, None
            begin()
        while True:
            before, steps = self._worth(), 0
            with closing(super().__iter__()) as batches:  # type: ignore[type-var]
                for batch in batches:
                    yield batch
                    steps += 1
                    if self._micro_batch is not None and self._micro_batch.ends_step:
                        if stop_request.should_stop():
                            _end()
                        if self._is_worth_an_epoch():
                            return
            trains = not steps or self._worth() != before
            if not (self._goes_on() and trains and len(self)) or self._is_worth_an_epoch():
                return

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch's sizes to a ``SummaryWriter``."""
        values = {
            "Total_Batch_Size": self.batch.size,
            "Local_Batch_Size": self._local(self.batch.size),
            "Accumulation_Steps": self.accumulation_steps,
        }
        write_scalars(writer, values, global_step, tag_prefix)

    def _local(self, size: int) -> int:
        return math.ceil(size / self.ranks.size / (self.batch.accumulation + 1))

    def _goes_on(self) -> bool:
        """Whether one pass over the data may not be enough."""
        return self._autoscale is not None and progress.trained is not None and progress.current_epoch is not None

    def _is_worth_an_epoch(self) -> bool:
        """Whether the training is as far as it would be at the end of the epoch with the first batch."""
        if not self._goes_on():
            return False
        epochs = (progress.current_epoch or 0) + 1
        return self._worth() >= self._sampler.length * epochs / self.base_size

    @staticmethod
    def _worth() -> float:
        return 0.0 if progress.trained is None else float(progress.trained.worth)


class Accumulator(elastic.Accumulator):
    """A dict of sums over all replicas, as of :class:`deeppart.elastic.Accumulator`."""

    def __init__(self) -> None:
        found()
        super().__init__(name=_name("sums"), ranks=Replicas())


def write_scalars(writer: Any, values: Mapping[str, float], step: int, prefix: str) -> None:
    """Write values to a ``SummaryWriter``, under a prefix with one slash at its end."""
    prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    for name, value in values.items():
        writer.add_scalar(f"{prefix}{name}", value, step)


def _name(kind: str) -> str | None:
    """By the epoch and the order in it, for what is made within an epoch; None, for the order alone, elsewhere."""
    if progress.loader is not None:
        raise ConfigError(
            "a data loader or an accumulator is made within a loop over a data loader", todo="make it before the loop"
        )
    if progress.current_epoch is None:
        return None
    name = f"{kind}-epoch{progress.current_epoch}-{sum(each.startswith(kind) for each in _of_epoch)}"
    _of_epoch.append(name)
    return name


def _end() -> None:
    """All replicas end here (collective)."""
    save_all_states()
    if env.checkpoint_path() is None and env.replica_rank() == 0:
        warn_caller(
            "told to end, and no checkpoint is made: neither ADAPTDL_CHECKPOINT_PATH nor DEEPPART_PERSISTENT_DIR names "
            "a directory. Started again, the training begins anew",
            DeeppartWarning,
        )
    stop_request.end_process(stop_request.EXIT_CODE)
