"""Data loaders that go on where they were, on any number of replicas, with batches that follow the training."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from deeppart.elastic.loader_options import with_calm_workers
from deeppart.elastic.permutation import permuted

from .. import env
from ..errors import UsageError
from ._metrics import get_progress
from .epoch import current_epoch
from .loops import AdaptiveDataLoaderHelper, current_dataloader

__all__ = [
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "ElasticSampler",
    "current_dataloader",
]


class ElasticSampler(Sampler[int]):
    """The samples of this replica from an index of the epoch's order on.

    All replicas have the same number: some samples come twice if it does not divide. Use
    :class:`deeppart.elastic.ElasticSampler` for every sample once.
    """

    def __init__(self, dataset: Any, shuffle: bool = True) -> None:
        self.dataset, self.shuffle = dataset, shuffle
        self.num_replicas, self.rank = env.num_replicas(), env.replica_rank()
        self.epoch: int | None = 0
        self.index = 0

    def __iter__(self) -> Iterator[int]:
        """Indices of samples."""
        length, count = self._length(), len(self)
        places = self.index % length + self.rank + self.num_replicas * np.arange(count)
        places = np.where(places < length, places, self.rank % length)
        if self.shuffle:
            places = permuted(places, length, 0, self.epoch or 0, self.index // length)
        found: list[int] = places.tolist()
        return iter(found)

    def __len__(self) -> int:
        """How many they are."""
        return math.ceil((self._length() - self.index % self._length()) / self.num_replicas)

    def set_epoch(self, epoch: int | None, index: int = 0) -> None:
        """Go on at an index in an epoch; indices beyond the data's length are of further passes over it."""
        self.epoch, self.index = epoch, index

    def _length(self) -> int:
        return len(cast(Sized, self.dataset))


class AdaptiveDataLoaderMixin:
    """What loops over a loader may ask it."""

    def __init__(self, batch_size: int) -> None:
        self._elastic = AdaptiveDataLoaderHelper(batch_size)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """As of :meth:`AdaptiveDataLoaderHelper.autoscale_batch_size`."""
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    @property
    def current_local_bsz(self) -> int | None:
        """Samples of a micro-batch of a replica; None outside of a loop."""
        return self._elastic.current_local_bsz if current_dataloader() is self._elastic else None

    @property
    def current_batch_size(self) -> int | None:
        """Samples of a step, all replicas together; None outside of a loop."""
        return self._elastic.current_batch_size if current_dataloader() is self._elastic else None

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a step beside the last one."""
        return self._elastic.accumulation_steps

    @property
    def training(self) -> bool:
        """Whether it is the loader that trains."""
        return self._elastic.training

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch's sizes to a ``SummaryWriter``."""
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)


class AdaptiveDataLoader(DataLoader[Any], AdaptiveDataLoaderMixin):
    """A DataLoader whose ``batch_size`` is that of all replicas together, and which goes on where it was.

    Every replica has as many samples as the others, rounded up. Loops are within an epoch of
    :func:`remaining_epochs_until`, one at a time.

    With :meth:`autoscale_batch_size` a loop lasts until the training has made as much progress as by one pass over the
    data with the first batch, which may be several passes.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any) -> None:
        given = [name for name in ("sampler", "batch_sampler") if kwargs.pop(name, None) is not None]
        if given or isinstance(dataset, IterableDataset):
            raise UsageError(
                "AdaptiveDataLoader says which samples are loaded, of a data set with a length",
                found=f"a {' and a '.join(given)}" if given else "an iterable data set",
            )
        kwargs["worker_init_fn"] = _seeding(kwargs.get("worker_init_fn"), kwargs.get("num_workers", 0))
        sampler = ElasticSampler(dataset, shuffle)
        super().__init__(dataset, batch_size, shuffle=False, sampler=sampler, **with_calm_workers(kwargs))
        AdaptiveDataLoaderMixin.__init__(self, batch_size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of this replica that are left of the loop.

        Between two of them the job may end, with a checkpoint: exit code 143.
        """
        epoch, elastic = current_epoch(), self._elastic
        length = len(cast(Sized, self.dataset))
        sampler, batches = cast(ElasticSampler, self.sampler), cast(Any, self.batch_sampler)
        with elastic.context():
            if elastic.skipdone():
                return
            elastic.check_length(length)
            done = False
            while not done:
                index = begun = elastic.current_index
                assert index is not None
                sampler.set_epoch(epoch, index)
                batches.batch_size = elastic.sync_local_bsz()
                for number, batch in enumerate(super().__iter__()):
                    with elastic.profile(self.training and number >= 1):
                        yield batch
                        index += sampler.num_replicas * batches.batch_size
                        elastic.current_index = index
                    if elastic.max_batch_size is not None and self._worth(length, epoch):
                        done = True
                        break
                done = done or elastic.max_batch_size is None
                if not done and index == begun and index % length == 0:
                    raise UsageError(
                        "a pass over the data has no batch", todo="leave out drop_last, or lower the batch"
                    )
                elastic.current_index = math.ceil(index / length) * length

    def _worth(self, length: int, epoch: int | None) -> bool:
        """Whether the training is as far as it would be at the end of the epoch with the first batch."""
        return get_progress() >= length * ((epoch or 0) + 1) / cast(int, self.batch_size)


def _seeding(function: Callable[[int], None] | None, workers: int) -> Callable[[int], None]:
    """What each worker begins with: seeds that no other worker of any replica has, and the caller's function."""
    return functools.partial(_seed, function, workers or 1)


def _seed(function: Callable[[int], None] | None, workers: int, worker: int) -> None:
    seed = torch.initial_seed() + env.replica_rank() * workers
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    if function is not None:
        function(worker)
