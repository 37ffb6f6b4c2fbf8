"""Reductions and broadcasts of small Python objects between all replicas, which call them in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from . import env
from .errors import UsageError
from .reducer import Future, Reducer, default_reduce_fn

_reducer: Reducer | None = None


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
    *,
    store: dist.Store | None = None,
) -> None:
    """Connect all replicas (collective)."""
    global _reducer
    if _reducer is not None:
        raise UsageError("the replicas are connected already", todo="call initialize(), or init_process_group(), once")
    _reducer = Reducer(
        env.replica_rank() if replica_rank is None else replica_rank,
        env.num_replicas() if num_replicas is None else num_replicas,
        env.master_addr() if master_addr is None else master_addr,
        env.master_port() if master_port is None else master_port,
        store,
    )


def initialized() -> bool:
    """Whether the replicas are connected."""
    return _reducer is not None


def teardown() -> None:
    """Wait for all replicas, and disconnect (collective)."""
    global _reducer
    _connected().allreduce(0)
    _reducer = None


def allreduce(value: Any, reduce_fn: Callable[[Any, Any], Any] = default_reduce_fn) -> Any:
    """The values of all replicas, reduced (collective); by default their sum."""
    return _connected().allreduce(value, reduce_fn)


def allreduce_async(value: Any, reduce_fn: Callable[[Any, Any], Any] = default_reduce_fn) -> Future:
    """Begin a reduction (collective)."""
    return _connected().allreduce_async(value, reduce_fn)


def broadcast(value: Any) -> Any:
    """What replica 0 gives (collective)."""
    return _connected().broadcast(value)


def _connected() -> Reducer:
    if _reducer is None:
        raise UsageError(
            "the replicas are not connected", todo="call init_process_group() of deeppart.elastic.adaptdl.torch first"
        )
    return _reducer
