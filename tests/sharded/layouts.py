"""A small model in the layouts that people train in, on the first ranks of a job; filled with what an oracle says.

The model has lengths that do not divide by the number of ranks, a parameter without dimensions, tied parameters, a
buffer, and an optimizer with moments. What torch itself splits by ``distribute_tensor`` is what a layout must hold.
"""

from __future__ import annotations

import inspect
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard
try:
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_tensor", "fully_shard"]

#: Without sending anything, where torch can (2.6).
_ALONE: dict[str, Any] = (
    {"src_data_rank": None} if "src_data_rank" in inspect.signature(distribute_tensor).parameters else {}
)

SPLITS_ALONE = bool(_ALONE)

#: Layouts, and on how many ranks each can be.
LAYOUTS = {
    "fsdp": (1, 2, 3, 4, 5),
    "hsdp": (4,),
    "tp": (2, 3),
    "tp-dp": (4,),
    "replicated": (1, 2, 3, 5),
}
_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
#: Does not divide by four: FSDP over tensor parallelism could not do that in torch 2.7.
INNER = 14 if _VERSION >= (2, 10) else 16
#: In torch 2.4 the state_dict() of a module over two dimensions of a mesh is not there yet.
HAS_TWO_DIMENSIONS = _VERSION >= (2, 5)
if not HAS_TWO_DIMENSIONS:
    del LAYOUTS["hsdp"], LAYOUTS["tp-dp"]


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(31, 12)
        self.blocks = nn.ModuleList([Block(12, INNER), Block(12, INNER)])
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(5, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def mesh_of(layout: str, ranks: int) -> DeviceMesh | None:
    """The mesh of a layout on ranks 0 to ``ranks - 1``; a call of all ranks of the job."""
    numbers = torch.arange(ranks)
    if layout in ("hsdp", "tp-dp", "tp-replicas"):
        return DeviceMesh("cpu", numbers.view(2, -1), mesh_dim_names=("first", "second"))
    return None if layout == "replicated" else DeviceMesh("cpu", numbers)


def build(layout: str, mesh: DeviceMesh | None, flattened: Any = None) -> dict[str, Any]:
    """A state in a layout, on a rank of its mesh; with what an optimizer has after a step.

    Args:
        flattened: makes what is put into the state as "flat", too, of model and optimizer.
    """
    torch.manual_seed(1)
    model: nn.Module = Model()
    if mesh is not None and layout == "tp":
        _tensor_parallel(model, mesh)
    elif mesh is not None and layout == "tp-replicas":
        _tensor_parallel(model, mesh["second"])
    elif mesh is not None and layout == "tp-dp":
        _tensor_parallel(model, mesh["second"])
        _fully_shard(model, mesh["first"])
    elif mesh is not None:
        _fully_shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "step": 0,
        "plain": torch.zeros(1000),
    }
    return state if flattened is None else state | {"flat": flattened(model, optimizer)}


def _fully_shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:  # type: ignore[union-attr]
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tensors(state: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a state, with its path."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, dict):
        for key, item in state.items():
            yield from tensors(item, f"{path}/{key}")
    elif isinstance(state, list):
        for place, item in enumerate(state):
            yield from tensors(item, f"{path}/{place}")


def expected(path: str, like: torch.Tensor, seed: int) -> torch.Tensor:
    """The oracle: what the whole tensor at a path holds."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(path.encode()))
    values = torch.randint(-(2**20), 2**20, tuple(like.shape), generator=generator)
    return values.to(like.dtype)


def fill(state: dict[str, Any], seed: int) -> None:
    """Give every tensor what the oracle says; torch splits it."""
    for path, tensor in tensors(state):
        whole = expected(path, tensor, seed)
        if isinstance(tensor, DTensor):
            split = distribute_tensor(whole, tensor.device_mesh, tensor.placements, **_ALONE)
            tensor._local_tensor.detach().copy_(split._local_tensor)
        else:
            tensor.detach().copy_(whole)
    state["step"] = seed


def clear(state: dict[str, Any]) -> None:
    for _, tensor in tensors(state):
        (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach().fill_(-1)
    state["step"] = -1


def wrong(state: dict[str, Any], seed: int, *, gather: bool = True) -> list[str]:
    """Paths of the tensors that do not hold what the oracle says, by what torch gathers from all ranks."""
    found = []
    for path, tensor in tensors(state):
        whole = tensor.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor() if gather else whole
        if not torch.equal(whole, expected(path, tensor, seed)):
            found.append(path)
    return found + (["step"] if state["step"] != seed else [])


def end_job() -> None:
    """The end of a rank's work: nothing but the process is left to end.

    Threads of gloo end some processes by SIGABRT while the interpreter ends (torch 2.13, with or without deeppart).
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def group_of(ranks: int) -> Any:
    """The first ranks of the job as a group; a call of all."""
    return dist.new_group(list(range(ranks)))
