"""Squared norms of gradients, as they are or as an Adam scales them; of all elements, or of one part of several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: Adam's second moments say little before so many steps.
_LEAST_ADAM_STEPS = 5
#: Elements that are worked on at a time on a CPU: what is made of them is small beside its caches.
_AT_A_TIME = 1 << 17


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of each tensor's elements: together they are all of them, and none is in two.

    Attributes:
        number: from 0 on.
        parts: how many.

    Example:
        >>> import torch
        >>> from deeppart.elastic.squared_norms import Part
        >>> [Part(number, 3).of(torch.arange(7)).tolist() for number in range(3)]
        [[0, 1], [2, 3], [4, 5, 6]]
    """

    number: int = 0
    parts: int = 1

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part, as a vector; a view where the tensor's memory allows."""
        flat = tensor.detach().reshape(-1)
        if self.parts == 1:
            return flat
        return flat[flat.numel() * self.number // self.parts : flat.numel() * (self.number + 1) // self.parts]


#: All elements.
WHOLE = Part()


def second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Of an optimizer's state of one parameter: Adam's, AMSGrad's, or RMSprop's; those that it divides by."""
    names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
    return next((state[name] for name in names if name in state), None)


def squared_norm(gradient: torch.Tensor, part: Part = WHOLE) -> torch.Tensor:
    """float64: of one parameter's gradient."""
    flat = part.of(gradient)
    if flat.dtype in (torch.float32, torch.float64):
        return torch.dot(flat, flat).double()
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
    return norm.square().double()


def preconditioned_squared_norm(
    gradient: torch.Tensor, moments: torch.Tensor, options: Mapping[str, Any], steps: int, part: Part = WHOLE
) -> torch.Tensor:
    """The same of a gradient as an Adam scales it; as it is where the moments say little yet.

    Args:
        moments: second ones, of the gradient's shape.
        options: of the group of parameters.
        steps: that the optimizer has made.
    """
    if steps < _LEAST_ADAM_STEPS:
        return squared_norm(gradient, part)
    flat, second = part.of(gradient), part.of(moments)
    beta = options["betas"][1] if "betas" in options else None
    correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
    # g / (sqrt(v) c + eps) is g / (sqrt(v) + eps / c) / c: one pass over the elements less.
    eps = options["eps"] / correction
    if not flat.numel():
        return torch.zeros((), dtype=torch.float64, device=flat.device)
    at_a_time = flat.numel() if flat.is_cuda else _AT_A_TIME
    room = torch.empty(min(at_a_time, flat.numel()), dtype=torch.float32, device=flat.device)
    norms = []
    for piece, of_piece in zip(flat.split(at_a_time), second.split(at_a_time), strict=True):
        scaled = room[: piece.numel()]
        torch.sqrt(of_piece.float(), out=scaled)
        scaled.add_(eps)
        torch.div(piece.float(), scaled, out=scaled)
        norms.append(torch.dot(scaled, scaled))
    return torch.stack(norms).sum(dtype=torch.float64) / correction**2
