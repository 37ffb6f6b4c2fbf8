"""Squared norms of gradients, as they are or as an Adam scales them; of all elements, or of one part of several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .parts import WHOLE, Part

#: Adam's second moments say little before so many steps.
_LEAST_ADAM_STEPS = 5
#: Elements that are worked on at a time: on a CPU what is made of them is small beside its caches, on a GPU they are as
#: many as keep it busy.
_AT_A_TIME, _AT_A_TIME_ON_GPU = 1 << 17, 1 << 24


def second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Of an optimizer's state of one parameter: Adam's, AMSGrad's, or RMSprop's; those that it divides by."""
    names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
    return next((state[name] for name in names if name in state), None)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An Adam divides gradients by ``(sqrt(moments) + eps) * correction``."""

    eps: float
    correction: float

    @classmethod
    def of(cls, options: Mapping[str, Any], steps: int) -> Scaling | None:
        """After so many steps with a group's options; None for not at all, where moments say little yet."""
        if steps < _LEAST_ADAM_STEPS:
            return None
        beta = options["betas"][1] if "betas" in options else None
        correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
        return cls(options["eps"] / correction, correction)


class Alike:
    """Gradients of a bucket whose squared norms are taken together, of a part of each.

    Most parts are so small that calling for each of them would be what costs.
    """

    def __init__(self, scaling: Scaling | None, counts: float = 1.0, *, keeps: bool = False) -> None:
        self._scaling, self._keeps = scaling, keeps
        self._factor = counts if scaling is None else counts / scaling.correction**2
        self._looked: list[tuple[int, Part]] = []
        self._moments: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] | None = None

    def add(self, place: int, part: Part, moments: torch.Tensor | None = None) -> None:
        """One more."""
        self._looked.append((place, part))
        if self._scaling is not None:
            assert moments is not None
            self._moments.append(moments)

    def squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """float64: of all of these together, out of the bucket's."""
        vectors = _gathered((gradients[place], part) for place, part in self._looked)
        if self._scaling is not None:
            pairs = zip(vectors, self._divisors(), strict=True)
            # What is not kept is written over: it is in caches, other memory is not.
            vectors = (torch.div(one.float(), by, out=None if self._keeps else by) for one, by in pairs)
        norm = _summed([_squared(vector) for vector in vectors], gradients[0].device)
        return norm if self._factor == 1.0 else norm * self._factor

    def _divisors(self) -> Iterable[torch.Tensor]:
        """Without the correction: one pass over the elements less."""
        assert self._scaling is not None
        if self._kept is not None:
            for each in self._kept:
                if each.is_cuda:  # made in another stream than that of this call
                    each.record_stream(torch.cuda.current_stream(each.device))
            return self._kept
        eps, parts = self._scaling.eps, (part for _, part in self._looked)
        found = (torch.sqrt(vector.float()).add_(eps) for vector in _gathered(zip(self._moments, parts, strict=True)))
        if not self._keeps:
            return found
        self._kept = list(found)
        return self._kept


def squared_norm(gradient: torch.Tensor, part: Part = WHOLE) -> torch.Tensor:
    """float64: of one parameter's gradient."""
    alone = Alike(None)
    alone.add(0, part)
    return alone.squared_norm([gradient])


def preconditioned_squared_norm(
    gradient: torch.Tensor, moments: torch.Tensor, options: Mapping[str, Any], steps: int, part: Part = WHOLE
) -> torch.Tensor:
    """The same of a gradient as an Adam scales it; as it is where the moments say little yet."""
    alone = Alike(Scaling.of(options, steps))
    alone.add(0, part, moments)
    return alone.squared_norm([gradient])


def _gathered(looked: Iterable[tuple[torch.Tensor, Part]]) -> Iterator[torch.Tensor]:
    """Parts of tensors, as few vectors of as many elements as are worked on at a time; only shapes decide which.

    Complex numbers are two real ones each, as Adam takes them.
    """
    pieces = [
        piece
        for tensor, part in looked
        for piece in part.of(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
    ]
    for dim in (1, 2):  # of two shapes they could not be put together without copying each before
        for batch in _batches([piece for piece in pieces if piece.dim() == dim]):
            yield (torch.cat(batch) if len(batch) > 1 else batch[0]).reshape(-1)


def _batches(pieces: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """As many of them as are worked on at a time; larger ones are cut."""
    batch, elements = list[torch.Tensor](), 0
    for piece in pieces:
        most = _AT_A_TIME_ON_GPU if piece.is_cuda else _AT_A_TIME
        for cut in piece.split(max(1, most * len(piece) // piece.numel())) if piece.numel() > most else (piece,):
            if batch and elements + cut.numel() > most:
                yield batch
                batch, elements = [], 0
            batch.append(cut)
            elements += cut.numel()
    if batch:
        yield batch


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
