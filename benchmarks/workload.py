"""The state that is saved: BERT-large by shapes, with its Adam state or without, or many small tensors; random float32.

A smaller scale takes rows away from BERT's large parameters and leaves the small ones: 1,564 leaves at any scale. Fewer
layers mean fewer leaves. Of small tensors, it leaves fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from benchmarks.partition_scale import bert_large_shapes

BERT_LAYERS = 24
#: Small tensors: how many at scale 1, of how many elements each.
SMALL_TENSORS, SMALL_TENSOR_ELEMENTS = 100_000, 1024
#: Parameters of at most this many elements keep their shape at every scale.
SMALL_ELEMENTS = 16 << 10
#: Random numbers drawn; leaves are filled from them at different places, which is much faster than drawing them all.
_DRAWN = 1 << 24
#: What live tensors are overwritten with before a restore: bytes left over from before must not pass for restored.
_SPOILT = -7.75
#: Elements from one that a training step changes to the next: 1 MiB of float32.
_CHANGED_EVERY = 1 << 18


@dataclass(frozen=True)
class Workload:
    """The state of one rank.

    Attributes:
        tree: what is handed to the checkpoint libraries.
        leaves: its tensors.
        nbytes: their bytes.
        parameters: number of model parameters (elements, without the optimizer's).
    """

    tree: dict[str, Any]
    leaves: list[torch.Tensor]
    nbytes: int
    parameters: int

    def digest(self) -> str:
        """xxh3-128 of all bytes, leaf after leaf."""
        hasher = xxhash.xxh3_128()
        for leaf in self.leaves:
            hasher.update(leaf.detach().reshape(-1).numpy().data)
        return hasher.hexdigest()

    def spoil(self) -> None:
        """Overwrite every element."""
        for leaf in self.leaves:
            leaf.fill_(_SPOILT)

    def train(self, turn: int) -> None:
        """Change every leaf everywhere a little, the same way on all ranks: no chunk of it is as it was."""
        change_everywhere(self.leaves, turn)

    def sweep(self) -> None:
        """Read and write every element, as an optimizer step does, and change none."""
        with torch.no_grad():
            for leaf in self.leaves:
                leaf.mul_(1.0)

    def take(self, values: dict[str, Any]) -> None:
        """Copy another state of the same structure into this one: what follows ``torch.load`` in a training script."""
        with torch.no_grad():
            for target, source in zip(self.leaves, _leaves_of(values), strict=True):
                target.copy_(source)


def change_everywhere(leaves: Sequence[torch.Tensor], turn: int) -> None:
    """Change an element of every MiB, and one of every shorter leaf: no chunk is as it was."""
    for leaf in leaves:
        flat = leaf.detach().reshape(-1)
        flat[turn % min(flat.numel(), _CHANGED_EVERY) :: _CHANGED_EVERY] = turn + 0.5


def shapes_of(state: str, scale: float, layers: int = BERT_LAYERS) -> dict[str, tuple[int, ...]]:
    """The parameters of a state."""
    if state == "small":
        return {f"tensor{number:06d}": (SMALL_TENSOR_ELEMENTS,) for number in range(round(scale * SMALL_TENSORS))}
    return scaled_shapes(scale, layers)


def scaled_shapes(scale: float, layers: int = BERT_LAYERS) -> dict[str, tuple[int, ...]]:
    """BERT-large's parameters, the large ones with ``scale`` times their rows, of its first layers."""
    shapes = {}
    for name, shape in bert_large_shapes().items():
        if name.startswith("encoder.layer.") and int(name.split(".")[2]) >= layers:
            continue
        shapes[name] = shape
        if int(np.prod(shape)) > SMALL_ELEMENTS and scale != 1:
            shapes[name] = (max(1, round(shape[0] * scale)), *shape[1:])
    return shapes


def state_bytes(scale: float, layers: int = BERT_LAYERS, state: str = "bert-large+adam") -> int:
    """Bytes of the state at a scale, without making it."""
    each, more = (12, 4) if state == "bert-large+adam" else (4, 0)
    return sum(each * int(np.prod(shape)) + more for shape in shapes_of(state, scale, layers).values())


def state_leaves(scale: float, layers: int = BERT_LAYERS, state: str = "bert-large+adam") -> int:
    """Its number of leaves."""
    return len(shapes_of(state, scale, layers)) * (4 if state == "bert-large+adam" else 1)


def make_workload(state: str, scale: float, layers: int, seed: int) -> Workload:
    """The state, the same on every rank that passes the same arguments."""
    shapes = shapes_of(state, scale, layers)
    drawn = torch.randn(_DRAWN, generator=torch.Generator().manual_seed(seed))
    place = 0

    def fill(shape: tuple[int, ...]) -> torch.Tensor:
        nonlocal place
        flat = torch.empty(int(np.prod(shape)))
        for piece in flat.split(_DRAWN // 2):
            start = place % (_DRAWN // 2)
            piece.copy_(drawn[start : start + piece.numel()])
            place += piece.numel() + 101
        return flat.view(shape)

    model = {name: fill(shape) for name, shape in shapes.items()}
    moments: dict[int, dict[str, torch.Tensor]] = {
        number: {"step": torch.tensor(1000.0), "exp_avg": fill(shape), "exp_avg_sq": fill(shape).square_()}
        for number, shape in enumerate(shapes.values())
        if state == "bert-large+adam"
    }
    tree: dict[str, Any] = {"model": model, "optimizer": {"state": moments}}
    leaves = _leaves_of(tree)
    return Workload(
        tree=tree,
        leaves=leaves,
        nbytes=sum(leaf.nbytes for leaf in leaves),
        parameters=sum(parameter.numel() for parameter in model.values()),
    )


def halves(leaves: Sequence[torch.Tensor], ranks: int, rank: int) -> list[torch.Tensor]:
    """A rank's equal share of the bytes as flat views, leaves laid end to end and cut at ``ranks`` places."""
    total = sum(leaf.numel() for leaf in leaves)
    first, last = total * rank // ranks, total * (rank + 1) // ranks
    views, at = [], 0
    for leaf in leaves:
        begin, end = max(first - at, 0), min(last - at, leaf.numel())
        if begin < end:
            views.append(leaf.detach().reshape(-1)[begin:end])
        at += leaf.numel()
    return views


def _leaves_of(tree: dict[str, Any]) -> list[torch.Tensor]:
    leaves = list(tree["model"].values())
    for number in sorted(tree["optimizer"]["state"], key=int):
        moments = tree["optimizer"]["state"][number]
        leaves += [moments[name] for name in ("step", "exp_avg", "exp_avg_sq")]
    return leaves
