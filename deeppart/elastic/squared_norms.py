"""Squared norms of gradients, as they are or as an Adam scales them; of all elements, or of one part of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .parts import WHOLE, Part

#: Adam's second moments say little before so many steps.
_LEAST_ADAM_STEPS = 5
#: Elements that are worked on at a time on a CPU: what is made of them is small beside its caches.
_AT_A_TIME = 1 << 17


def second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Of an optimizer's state of one parameter: Adam's, AMSGrad's, or RMSprop's; those that it divides by."""
    names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
    return next((state[name] for name in names if name in state), None)


def squared_norm(gradient: torch.Tensor, part: Part = WHOLE) -> torch.Tensor:
    """float64: of one parameter's gradient."""
    return _summed([_squared(piece.reshape(-1)) for piece in _pieces(gradient, part)], gradient.device)


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
    beta = options["betas"][1] if "betas" in options else None
    correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
    # g / (sqrt(v) c + eps) is g / (sqrt(v) + eps / c) / c: one pass over the elements less.
    eps = options["eps"] / correction
    norms, room = [], torch.empty(0, dtype=torch.float32, device=gradient.device)
    for piece, second in zip(_pieces(gradient, part), _pieces(moments, part), strict=True):
        if room.numel() < piece.numel():
            room = room.new_empty(piece.numel())
        scaled = room[: piece.numel()].view(piece.shape)
        torch.sqrt(second.float(), out=scaled)
        scaled.add_(eps)
        torch.div(piece.float(), scaled, out=scaled)
        norms.append(_squared(scaled.view(-1)))
    return _summed(norms, gradient.device) / correction**2


def _pieces(tensor: torch.Tensor, part: Part) -> Iterator[torch.Tensor]:
    """Of a part, as many elements as are worked on at a time, in rows or as a vector.

    Complex numbers are two real ones each, as Adam takes them.
    """
    for piece in part.of(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor):
        if piece.numel() <= _AT_A_TIME or piece.is_cuda:
            yield piece
        else:
            yield from piece.split(max(1, _AT_A_TIME * len(piece) // piece.numel()))


def _squared(vector: torch.Tensor) -> torch.Tensor:
    """float64"""
    if vector.dtype in (torch.float32, torch.float64):
        return torch.dot(vector, vector).double()
    norm: torch.Tensor = torch.linalg.vector_norm(vector, dtype=torch.float32)
    return norm.square().double()


def _summed(norms: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if len(norms) == 1:
        return norms[0]
    return torch.stack(norms).sum() if norms else torch.zeros((), dtype=torch.float64, device=device)
