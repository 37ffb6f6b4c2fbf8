"""Process groups for tests of one process: a real one of one rank, or a pretended one of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, debug, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def one_rank() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DeviceMesh("cpu", [0])
    finally:
        dist.destroy_process_group()


@contextmanager
def pretended(rank: int, size: int) -> Iterator[None]:
    """This process is one of so many ranks, of which the others do not exist: nothing may be sent.

    What torch remembers of operations has meshes in it, which know the rank that they were made on.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        getattr(debug, "_clear_sharding_prop_cache", lambda: None)()


def split(whole: torch.Tensor, lengths: Sequence[int], placements: Sequence[Placement]) -> Any:
    """What torch gives this rank of a tensor, on a mesh of such lengths."""
    count = int(torch.tensor(lengths).prod())
    mesh = DeviceMesh("cpu", torch.arange(count).view(*lengths))
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def split_as(whole: torch.Tensor, lengths: Sequence[int], placements: Sequence[Placement]) -> Any:
    """The same, also for placements that distribute_tensor refuses: what torch splits, one mesh dimension at a time."""
    count = int(torch.tensor(lengths).prod())
    mesh = DeviceMesh("cpu", torch.arange(count).view(*lengths))
    place, local = mesh.get_coordinate(), whole
    for at, placement in enumerate(placements):
        if place is not None and hasattr(placement, "_split_tensor"):
            pieces, _ = placement._split_tensor(local, lengths[at], with_padding=False)
            local = pieces[place[at]]
    local = local if place is not None else whole.new_empty(0)
    return DTensor.from_local(local, mesh, list(placements), run_check=False, shape=whole.shape, stride=whole.stride())
