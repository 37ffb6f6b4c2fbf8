"""Reductions and broadcasts of Python objects over torch.distributed. They are pickled: replicas trust each other."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from deeppart.config import launch
from deeppart.elastic.ranks import TorchRanks
from deeppart.errors import ConfigError

from . import env


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
) -> None:
    """Create the process group with gloo (collective); :func:`init_process_group` takes another backend."""
    host, port = master_addr or env.master_addr(), env.master_port() if master_port is None else master_port
    init_process_group("gloo", f"tcp://{host}:{port}" if port else None, num_replicas, replica_rank)


def init_process_group(
    backend: str, init_method: str | None = None, world_size: int | None = None, rank: int | None = None
) -> None:
    """Create torch.distributed's process group from AdaptDL's variables or the launcher's (collective)."""
    if dist.is_initialized():
        raise ConfigError("the process group exists already", todo="call initialize(), or init_process_group(), once")
    rank = env.replica_rank() if rank is None else rank
    size = env.num_replicas() if world_size is None else world_size
    store = None
    if init_method is None and env.master_port():
        init_method = f"tcp://{env.master_addr()}:{env.master_port()}"
    elif init_method is None and size == 1 and launch() is None:
        store = dist.HashStore()
    dist.init_process_group(backend, init_method, store=store, rank=rank, world_size=size)


def initialized() -> bool:
    """Whether the process group exists."""
    return dist.is_initialized()


def teardown() -> None:
    """Wait for all replicas and destroy the process group (collective)."""
    allreduce(0)
    dist.destroy_process_group()


def allreduce(value: Any, reduce_fn: Callable[[Any, Any], Any] = operator.add) -> Any:
    """The values of all replicas, reduced in rank order (collective); by default their sum."""
    check_initialized()
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return functools.reduce(reduce_fn, values)


def broadcast(value: Any) -> Any:
    """The value of replica 0 (collective)."""
    return allreduce(value, lambda first, _: first)


def check_initialized() -> None:
    """Raise without a process group, where each replica would train alone."""
    if not dist.is_initialized():
        raise ConfigError(
            "there is no process group",
            found=f"{env.num_replicas()} replicas",
            todo="call init_process_group() of deeppart.elastic.adaptdl.torch first",
        )


class Replicas:
    """The replicas as :class:`deeppart.elastic.Ranks`, which loaders need before there is a process group."""

    def __init__(self) -> None:
        self.rank, self.size = env.replica_rank(), env.num_replicas()

    def gather(self, value: Any, what: str) -> list[Any]:
        """See :meth:`deeppart.elastic.Ranks.gather`."""
        if self.size == 1:
            return [value]
        check_initialized()
        return TorchRanks().gather(value, what)
