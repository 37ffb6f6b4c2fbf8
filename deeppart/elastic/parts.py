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
#: So far from the golden section a better stride is looked for: what has no common divisor with the parts may be a bad
#: one.
_NEAR = 32


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
        (Part(number=60, parts=100), 25.0)
    """

    number: int
    rank: int
    ranks: int
    elements: int

    def of(self, elements: int, number: int) -> tuple[Part, float] | None:
        """The part of a tensor, and how often what is found of it counts; None if it is another rank's turn.

        With that, the sum over ranks estimates what one rank would find of the whole tensor, without bias where all of
        them look at the same, or at what is alike on average.
        """
        if elements < LEAST_OF_TENSOR:
            return (WHOLE, 1.0) if (self.number + number) % self.ranks == self.rank else None
        times = max(1, min(self.elements // ENOUGH, elements // LEAST_OF_TENSOR))
        # Rows of matrices are often a power of two long, or a small multiple of one. Of an even number of parts a turn
        # would look at the same few columns of every row, and in most turns at none of those with large gradients.
        times -= 1 - times % 2
        parts = times * self.ranks
        # Another part of each tensor: layers of a model have large gradients in the same places.
        turn = self.number + number
        return Part((self.rank * times + turn * _stride(times, parts)) % parts, parts), float(times)


@cache
def _stride(times: int, parts: int) -> int:
    """From the part of a turn to that of the next one: any few turns are spread evenly over the tensor.

    Of neighbouring parts many turns would look at the same rows, and then for long at none of them. It comes to all
    parts, and with the other ranks to all in ``times`` turns, in an order that depends on ``times`` alone.
    """
    golden = round(times * (math.sqrt(5) - 1) / 2)
    near = range(max(1, golden - _NEAR), min(times, golden + _NEAR) + 1)
    stride = min((each for each in near if math.gcd(each, times) == 1), key=lambda each: _worst_quotient(each, times))
    while math.gcd(stride, parts) > 1:
        stride += times
    return stride


def _worst_quotient(stride: int, times: int) -> int:
    """The largest one in the continued fraction of stride / times: the larger it is, the closer some few turns lie."""
    worst = 0
    while stride:
        times, (quotient, stride) = stride, divmod(times, stride)
        worst = max(worst, quotient)
    return worst
