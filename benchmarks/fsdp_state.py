"""The state of benchmarks/fsdp.py: BERT-large by shapes with Adam, sharded as FSDP2 shards it; random float32.

Every value follows from its place in the whole tensor and from the turn. So each rank can say what its part has to be,
on any number of ranks, without the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.workload import scaled_shapes

#: Random numbers drawn; pieces of so many elements are taken from among them, which is faster than drawing them all.
_DRAWN, _PIECE = 1 << 24, 1 << 20
#: Steps between the pieces of a leaf, leaves, and turns: large primes.
_STRIDES = (104_729, 7_919, 15_485_863)
#: What live tensors are overwritten with before a restore: bytes left over from before must not pass for restored.
_SPOILT = -7.75


def draw(seed: int) -> torch.Tensor:
    """The random numbers of a run, the same on every rank."""
    return torch.randn(_DRAWN, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class _Leaf:
    """One sharded tensor.

    Attributes:
        number: in the state.
        local: this rank's rows.
        first: place of the first of its elements in the whole tensor.
    """

    number: int
    local: torch.Tensor
    first: int


@dataclass
class ShardedState:
    """One rank's part, on a mesh of one dimension; parameters and moments are DTensors, Adam's steps are plain.

    Attributes:
        tree: what is handed to the checkpoint libraries; made as get_model_state_dict and get_optimizer_state_dict do.
        parameters: what an optimizer has.
        local_bytes: of this rank's part.
    """

    mesh: DeviceMesh
    drawn: torch.Tensor
    scale: float
    layers: int
    tree: dict[str, Any] = field(default_factory=dict)
    parameters: list[torch.Tensor] = field(default_factory=list)
    local_bytes: int = 0
    _leaves: list[_Leaf] = field(default_factory=list)
    _steps: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        model: dict[str, torch.Tensor] = {}
        moments: dict[str, dict[str, torch.Tensor]] = {}
        for name, shape in scaled_shapes(self.scale, self.layers).items():
            parameter = self._sharded(shape).requires_grad_()
            self.parameters.append(parameter)
            model[name] = parameter.detach()
            steps = torch.zeros(())
            self._steps.append(steps)
            moments[name] = {"step": steps, "exp_avg": self._sharded(shape), "exp_avg_sq": self._sharded(shape)}
        self.tree |= {"model": model, "optimizer": {"state": moments}}
        self.local_bytes = sum(tensor.nbytes for tensor in (*self._steps, *(leaf.local for leaf in self._leaves)))

    def fill(self, turn: int) -> None:
        """The values of a turn: every element is another one than in the turn before."""
        with torch.no_grad():
            for steps in self._steps:
                steps.fill_(1000.0 + turn)
            for part, source in self._pieces(turn):
                part.copy_(source)

    def is_of(self, turn: int) -> bool:
        """Whether every byte of this rank's part is that of a turn."""
        if any(float(steps) != 1000.0 + turn for steps in self._steps):
            return False
        return all(torch.equal(part.view(torch.int32), each.view(torch.int32)) for part, each in self._pieces(turn))

    def spoil(self) -> None:
        """Overwrite every element."""
        with torch.no_grad():
            for tensor in (*self._steps, *(leaf.local for leaf in self._leaves)):
                tensor.fill_(_SPOILT)

    def sweep(self) -> None:
        """Read and write every element, as an optimizer step does, and change none."""
        with torch.no_grad():
            for leaf in self._leaves:
                leaf.local.mul_(1.0)

    def _sharded(self, shape: tuple[int, ...]) -> DTensor:
        """A tensor of which the ranks have equal numbers of rows, the last ones fewer or none, as with FSDP2."""
        each = -(-shape[0] // self.mesh.size())
        first = min(self.mesh.get_local_rank() * each, shape[0])
        local = torch.zeros((min(each, shape[0] - first), *shape[1:]))
        self._leaves.append(_Leaf(len(self._leaves), local, first * prod(shape[1:])))
        stride = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
        return DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    def _pieces(self, turn: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Parts of this rank's tensors, and what they have to be at a turn."""
        for leaf in self._leaves:
            flat, at = leaf.local.view(-1), leaf.first
            end = at + flat.numel()
            while at < end:
                piece, into = divmod(at, _PIECE)
                count = min(_PIECE - into, end - at)
                place = sum(a * b for a, b in zip((piece, leaf.number, turn), _STRIDES, strict=True))
                start = place % (_DRAWN - _PIECE) + into
                yield flat[at - leaf.first :][:count], self.drawn[start : start + count]
                at += count


class Sweep(torch.optim.Optimizer):
    """Has the parameters and the moments of a state, as Adam has them; changes nothing.

    While it is entered, the parameters have gradients, which take no memory.
    """

    def __init__(self, state: ShardedState) -> None:
        super().__init__(state.parameters, {})
        self._sharded = state
        moments = state.tree["optimizer"]["state"].values()
        for parameter, entry in zip(state.parameters, moments, strict=True):
            self.state[parameter] = entry

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """As a training step does."""
        self._sharded.sweep()

    def __enter__(self) -> None:
        for parameter in self._sharded.parameters:
            parameter.grad = _no_gradient(parameter)
        self.step()

    def __exit__(self, *error: object) -> None:
        for parameter in self._sharded.parameters:
            parameter.grad = None


def _no_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Zeros like a parameter that take no memory."""
    assert isinstance(parameter, DTensor)
    zeros = torch.zeros(()).expand(parameter.to_local().shape)
    mesh, rows = parameter.device_mesh, parameter.placements
    return DTensor.from_local(zeros, mesh, rows, run_check=False, shape=parameter.shape, stride=parameter.stride())
