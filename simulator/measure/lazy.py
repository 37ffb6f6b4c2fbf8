"""What a lazy call takes, and the copies that it puts off, from lazy checkpoints beside eager ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .fitting import Sample, after, fit

#: So fast a copy in the background is taken to be at least, as a share of an eager one: below, something else was slow.
_LEAST_LATE = 0.1


def guards_s(late: Mapping[str, Sequence[float]], samples: Sequence[Sample], tensors: int) -> float:
    """Seconds of a lazy call beside planning, and beside what a copy takes as such: the model has these apart.

    Args:
        late: the lazy checkpoints.
        samples: eager ones.
        tensors: of a share of the lazy ones.
    """
    plan, capture = fit(samples, "plan"), fit(samples, "capture")
    return max(0.0, median(late["blocked"]) - plan[0] - tensors * plan[2] - capture[0])


def late_share(late: Mapping[str, Sequence[float]], samples: Sequence[Sample], share: tuple[int, int]) -> float:
    """How fast copies in the background are, as a share of how fast eager ones are.

    What the lazy checkpoints take longer from the end of the call until they are on the node is the copy.

    Args:
        late: the lazy checkpoints.
        samples: eager ones.
        share: of the lazy ones.
    """
    constant, per_byte, per_tensor = fit(samples, "local")
    copied_s = after(late, "local", "blocked") - constant - per_byte * share[0] - per_tensor * share[1]
    _, per_byte, per_tensor = fit(samples, "capture")
    copied_s -= per_tensor * share[1]
    return 1.0 if copied_s <= 0 else min(1.0, max(_LEAST_LATE, per_byte * share[0] / copied_s))
