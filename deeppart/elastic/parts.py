"""Which elements of large gradients each rank takes the norms of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

#: Of a model with so many elements each rank looks at some of them: to look at all is what costs then. Of fewer
#: elements some say less, and all cost nothing.
LEAST_DIVIDED = 1 << 20
#: All ranks together look at about so many elements of a model in a step: the sum over them is as good as that over
#: all, to within sqrt(kurtosis / elements).
ENOUGH = 1 << 22
#: Tensors with fewer elements are looked at whole, by one rank after the other; of others at so many in each step, or
#: small ones would be left out in most steps of a very large model.
LEAST_OF_TENSOR = 1 << 12
#: Parts consist of runs of so many elements, two cache lines: rows of a matrix, which may differ much, fall to many
#: parts each.
RUN = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of each tensor's elements: together they are all of them, and none is in two.

    Attributes:
        number: from 0 on.
        parts: how many.

    Example:
        >>> import torch
        >>> from deeppart.elastic.parts import RUN, Part
        >>> [[piece.shape for piece in Part(number, 2).of(torch.arange(5 * RUN + 3))] for number in range(2)]
        [[torch.Size([3, 32])], [torch.Size([2, 32]), torch.Size([3])]]
    """

    number: int = 0
    parts: int = 1

    def of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The part: the whole as a vector; or runs of RUN elements, one in each row, and what may be left of another.

        Those without elements are left out. They are views where the tensor's memory allows.
        """
        whole = tensor.detach().contiguous()
        if self.parts == 1:
            return [whole.view(-1)] if whole.numel() else []
        begin, apart = self.number * RUN, self.parts * RUN
        rows = max(0, (whole.numel() - begin - RUN) // apart + 1)
        pieces = [whole.as_strided((rows, RUN), (apart, 1), whole.storage_offset() + begin)] if rows else []
        if whole.numel() > begin + rows * apart:
            pieces.append(whole.view(-1)[begin + rows * apart :])
        return pieces


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
        >>> Turn(0, rank=1, ranks=4, elements=110_000_000).of(768 * 3072, 5)
        (Part(number=26, parts=104), 26.0)
    """

    number: int
    rank: int
    ranks: int
    elements: int

    def of(self, elements: int, number: int) -> tuple[Part, float] | None:
        """The part of a tensor, and how often what is found of it counts; None if it is another rank's turn.

        With that, the sum over ranks estimates what one rank would find of the whole tensor, without bias where all of
        them look at the same, or at what is alike on average.

        Args:
            elements: of the tensor.
            number: of the tensor, another one for each of the model's.
        """
        if elements < LEAST_OF_TENSOR:
            return (WHOLE, 1.0) if (self.number + number) % self.ranks == self.rank else None
        times = max(1, min(self.elements // ENOUGH, elements // LEAST_OF_TENSOR))
        parts = times * self.ranks
        return Part((self.rank * times + self.number * _stride(times, parts)) % parts, parts), float(times)


@cache
def _stride(times: int, parts: int) -> int:
    """From the part of a turn to that of the next one: any few turns are spread evenly over the parts.

    Of neighbouring parts many turns would look at the same rows, and then for long at none of them. It comes to all
    parts, and with the other ranks to all in ``times`` turns.
    """
    stride = max(1, round(times * (math.sqrt(5) - 1) / 2))
    while math.gcd(stride, parts) > 1:
        stride += 1
    return stride
