"""Which choices are worth a look, and which one is advised.

What a choice costs is the training time that it can change: writing, doing again what was lost, and coming back slower
than the fastest choice does. The time to come back at all is the same whatever is chosen, and says nothing. Beside it
stand the bytes that go to the file system which others share, the bytes that wear the nodes' drives, and how much there
is to operate. A choice is on the *front* if no other one is as good in all four (V. Pareto).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from deeppart.plan.interval import Waste

#: Losing so much more than the least, as a share of that or of all time, is as good: no number is known better. But
#: never more than this share of the useful time: where most is lost, a twentieth of that is much of what is left.
AS_GOOD, AS_GOOD_OF_ALL, AS_GOOD_OF_USEFUL = 0.05, 5e-4, 0.01
#: So many times the bytes are as good.
_AS_FEW = 2.0
#: Losing more than so many times the least is not worth a look, however little is written.
_WORTH_A_LOOK = 10.0
#: What differs by less than this share does not differ.
_SAME = 0.02


class Weighed(Protocol):
    """What is needed of a choice."""

    @property
    def waste(self) -> Waste:
        """Of the time."""
        ...

    @property
    def idle(self) -> float:
        """Of the time: calls that save nothing."""
        ...

    @property
    def drained_daily_bytes(self) -> float:
        """To the file system, per day."""
        ...

    @property
    def node_daily_bytes(self) -> float:
        """To each node's storage, per day."""
        ...

    @property
    def simplicity(self) -> tuple[int, ...]:
        """Less is simpler."""
        ...


T = TypeVar("T", bound=Weighed)


def loss_of(choice: Weighed, least_restart: float) -> float:
    """The share of the time that another choice could give back."""
    return choice.waste.total - least_restart


def least_restart(choices: Sequence[Weighed]) -> float:
    """The share of the time that coming back takes whatever is chosen."""
    return min(choice.waste.restart for choice in choices)


def as_good_as_least(choices: Sequence[Weighed]) -> float:
    """The share of the time that a choice may lose and be as good as the one that loses least."""
    fewest, idle = _fewest(choices)
    useful = 1 - min(choice.waste.total for choice in choices)
    return fewest + min(max(AS_GOOD * (fewest - idle), AS_GOOD_OF_ALL), AS_GOOD_OF_USEFUL * useful)


def _fewest(choices: Sequence[Weighed]) -> tuple[float, float]:
    """What is lost at least; and the part of it that is lost with each of the choices, which makes nothing as good."""
    least = least_restart(choices)
    return min(loss_of(choice, least) for choice in choices), min(choice.idle for choice in choices)


def front_of(choices: Sequence[T]) -> tuple[T, ...]:
    """The choices that none of the others is as good as, least waste first; of equal ones the simplest. Without those
    that lose ten times the least.
    """
    kept: list[T] = []
    least = least_restart(choices)
    fewest, idle = _fewest(choices)
    most = max(_WORTH_A_LOOK * (fewest - idle), AS_GOOD_OF_ALL) + idle
    for choice in sorted(choices, key=lambda each: (each.waste.total, each.simplicity, each.drained_daily_bytes)):
        if loss_of(choice, least) <= most and not any(_as_good(other, choice) for other in kept):
            kept.append(choice)
    return tuple(kept)


def _as_good(one: Weighed, other: Weighed) -> bool:
    return (
        one.drained_daily_bytes <= other.drained_daily_bytes * (1 + _SAME)
        and one.node_daily_bytes <= other.node_daily_bytes * (1 + _SAME)
        and one.simplicity <= other.simplicity
    )


def advised(front: Sequence[T]) -> T:
    """The one that is advised: of those that lose nearly least, what writes least to the file system, then to drives,
    each within a factor of two; then the simplest; then what loses least.
    """
    least, most = least_restart(front), as_good_as_least(front)
    left = [choice for choice in front if loss_of(choice, least) <= most]
    drained = min(choice.drained_daily_bytes for choice in left)
    left = [choice for choice in left if choice.drained_daily_bytes <= _AS_FEW * drained]
    worn = min(choice.node_daily_bytes for choice in left)
    left = [choice for choice in left if choice.node_daily_bytes <= _AS_FEW * worn]
    return min(left, key=lambda choice: (choice.simplicity, choice.waste.total))
