"""Which elements of large gradients each rank takes the norms of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Of a model with so many elements each rank looks at some of them: to look at all is what costs then. Of fewer
#: elements some say less, and all cost nothing.
LEAST_DIVIDED = 1 << 20
#: All ranks together look at about so many elements of a model in a step: the sum over them is as good as that over
#: all, to within sqrt(kurtosis / elements).
ENOUGH = 1 << 24
#: Tensors with fewer elements are looked at whole, by all ranks.
LEAST_OF_TENSOR = 1 << 12
#: Parts consist of runs of so many elements, a few cache lines: rows of a matrix, which may differ much, fall to all
#: parts.
RUN = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of each tensor's elements: together they are all of them, and none is in two.

    Attributes:
        number: from 0 on.
        parts: how many.

    Example:
        >>> import torch
        >>> from deeppart.elastic.parts import Part
        >>> for number in range(2):
        ...     print([piece.tolist() for piece in Part(number, 2).of(torch.arange(135))])  # doctest: +ELLIPSIS
        [[[0, 1, ..., 62, 63]], [128, 129, 130]]
        [[[64, 65, ..., 126, 127]], [131, 132, 133, 134]]
    """

    number: int = 0
    parts: int = 1

    def of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The part: the whole as a vector; or runs of RUN elements, one in each row, and a vector of what is left.

        Those without elements are left out. They are views where the tensor's memory allows.
        """
        flat = tensor.detach().reshape(-1)
        if self.parts == 1:
            return [flat] if flat.numel() else []
        rounds = flat.numel() // (RUN * self.parts)
        runs, rest = flat.split([rounds * RUN * self.parts, flat.numel() - rounds * RUN * self.parts])
        of_rest = rest[rest.numel() * self.number // self.parts : rest.numel() * (self.number + 1) // self.parts]
        pieces = [runs.view(rounds, self.parts, RUN)[:, self.number]] if rounds else []
        return [*pieces, of_rest] if of_rest.numel() else pieces


#: All elements.
WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Turn:
    """What the ranks look at in a step: each at another part of every large tensor, and at others in the next step.

    Attributes:
        number: of the step, from 0 on.
        rank: that looks.
        ranks: how many.
        elements: of the whole model.

    Example:
        >>> from deeppart.elastic.parts import Turn
        >>> Turn(0, rank=1, ranks=4, elements=110_000_000).of(768 * 3072)
        (Part(number=6, parts=24), 6.0)
    """

    number: int
    rank: int
    ranks: int
    elements: int

    def of(self, elements: int) -> tuple[Part, float]:
        """The part of a tensor with so many elements, and how often what all ranks find of it counts.

        With that, the sum over ranks estimates what one rank would find of the whole tensor, without bias where all of
        them look at the same, or at what is alike on average.
        """
        if elements < LEAST_OF_TENSOR:
            return WHOLE, 1 / self.ranks
        times = max(1, self.elements // ENOUGH)
        parts = times * self.ranks
        return Part((self.rank * times + self.number) % parts, parts), float(times)
