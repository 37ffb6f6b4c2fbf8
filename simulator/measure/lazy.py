"""What a lazy call takes, and the copies that it puts off, from lazy checkpoints beside eager ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .fitting import Sample, after, bytes_and_tensors, fit, fit_planning

#: So fast a copy in the background is taken to be at least, as a share of an eager one: below, something else was slow.
_LEAST_LATE = 0.1


def guards_s(late: Mapping[str, Sequence[float]], samples: Sequence[Sample], tensors: int) -> float:
    """Seconds of a lazy call beside planning, and beside what a copy takes as such: the model has these apart.

    Args:
        late: the lazy checkpoints.
        samples: eager ones.
        tensors: of a share of the lazy ones, all large.
    """
    constant, per_tensor, per_large = fit_planning(samples)
    planning_s = constant + (per_tensor + per_large) * tensors
    return max(0.0, median(late["blocked"]) - planning_s - fit(samples, "capture")[0])


def late_copies(
    late: Sequence[Mapping[str, Sequence[float]]], samples: Sequence[Sample], shares: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """(How fast copies in the background are, as a share of how fast eager ones are; seconds for each tensor besides).

    What the lazy checkpoints take longer from the end of the call until they are on the node is the copy. Its bytes are
    taken to be no faster than in an eager one.

    Args:
        late: the lazy checkpoints, of as many bytes with few and with many tensors.
        samples: eager ones.
        shares: of the lazy ones.
    """
    constant, per_byte, per_tensor = fit(samples, "local")
    _, copied, copied_tensor = fit(samples, "capture")
    measured = []
    for each, (nbytes, tensors) in zip(late, shares, strict=True):
        rest_s = constant + per_byte * nbytes + (per_tensor + copied_tensor) * tensors
        if (copy_s := after(each, "local", "blocked") - rest_s) > 0:
            measured.append(Sample(samples[0].ranks, nbytes, tensors, {"copy": copy_s}))
    if not measured:
        return 1.0, 0.0
    of_bytes, of_tensor = bytes_and_tensors(measured, "copy", copied)
    return max(_LEAST_LATE, copied / of_bytes), of_tensor
