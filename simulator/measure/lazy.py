"""What a lazy call takes, and the copies that it puts off, from lazy checkpoints beside eager ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .fitting import Sample, after, bytes_and_tensors, constant_and_tensors, fit, fit_planning

#: So fast a copy in the background is taken to be at least, as a share of an eager one: below, something else was slow.
_LEAST_LATE = 0.1


def guards_s(
    late: Sequence[Mapping[str, Sequence[float]]], samples: Sequence[Sample], shares: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Seconds of a lazy call as such, and for each tensor, beside planning and beside what a copy takes as such: the
    model has these apart.
    """
    constant, per_tensor, per_large = fit_planning(samples)
    known_s = constant + fit(samples, "capture")[0]
    guards = []
    for each, (nbytes, tensors) in zip(late, shares, strict=True):
        guarding_s = median(each["blocked"]) - known_s - (per_tensor + per_large) * tensors
        if guarding_s > 0:
            guards.append(Sample(samples[0].ranks, nbytes, tensors, {"guards": guarding_s}))
    if not guards:
        return 0.0, 0.0
    as_such_s, per_tensor = constant_and_tensors(guards, "guards")
    if per_tensor > 0 and len(guards) > 1:
        return as_such_s, per_tensor
    # The call with few tensors was as slow, or as quick as planning, by chance.
    most = max(guards, key=lambda each: each.share_tensors)
    return 0.0, most.seconds["guards"] / most.share_tensors


def late_copies(
    late: Sequence[Mapping[str, Sequence[float]]], samples: Sequence[Sample], shares: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """(How fast copies in the background are, as a share of how fast eager ones are; seconds for each tensor besides).

    What the lazy checkpoints take longer from the end of the call until they are on the node is the copy. Its bytes are
    taken to be no faster than in an eager one.
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
