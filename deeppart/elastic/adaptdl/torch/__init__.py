"""What a training script uses: AdaptDL's ``adaptdl.torch``."""

from __future__ import annotations

import torch.distributed as dist

from deeppart.config.job import launch

from .. import env
from ..collective import initialize
from ..reducer import meeting_store
from .accumulator import Accumulator
from .data import AdaptiveDataLoader, ElasticSampler, current_dataloader
from .epoch import current_epoch, finished_epochs, remaining_epochs_until
from .parallel import AdaptiveDataParallel

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "init_process_group",
    "remaining_epochs_until",
]


def init_process_group(
    backend: str, init_method: str | None = None, world_size: int | None = None, rank: int | None = None
) -> None:
    """Connect all replicas, for torch.distributed and for :mod:`deeppart.elastic.adaptdl.collective` (collective)."""
    rank = env.replica_rank() if rank is None else rank
    size = env.num_replicas() if world_size is None else world_size
    host, port = env.master_addr(), env.master_port()
    if init_method is not None:
        host, _, text = init_method.removeprefix("tcp://").partition("?")[0].rpartition(":")
        port = int(text)
    alone = size == 1 and not port and (launch() is None)
    store = dist.HashStore() if alone else meeting_store(rank, size, host, port)
    initialize(host, port, rank, size, store=store)
    dist.init_process_group(backend, store=dist.PrefixStore("torch", store), rank=rank, world_size=size)
