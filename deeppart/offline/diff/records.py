"""What a comparison of two checkpoints finds: records for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deeppart.model import Manifest

#: only_a, only_b: of one checkpoint alone. type: other dtype, shape or container. tie: shares memory with another leaf,
#: or with none. value: a small value. elements: of a tensor or array.
DifferenceKind = Literal["only_a", "only_b", "type", "tie", "value", "elements"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers count as equal if they are no further apart than ``atol + rtol * max(abs(a), abs(b))``.

    Then 0.0 and -0.0 are equal, and so is one NaN to another.
    """

    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Held:
    """What one checkpoint alone has at a path.

    Attributes:
        text: its type, for people.
        leaves, values: how many of each.
        nbytes: of the leaves.
    """

    text: str
    leaves: int
    values: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Items:
    """How two runs of values differ.

    Attributes:
        count: how many items differ, or are in one of the two only.
        path: of the first of them, from the run.
        a, b: what is there, for people.
    """

    count: int
    path: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """How two arrays of one type differ.

    Attributes:
        elements: how many there are.
        differing: how many differ: in a bit, or with a tolerance by more than it.
        unlike: how many differ in a bit.
        equal_numbers: how many of those are the same number all the same: 0.0 and -0.0, NaNs of other bits.
        nans_only_a, nans_only_b: how many are NaN in one of the two.
        largest_absolute, largest_relative: of those that differ, are numbers in both and are not the same;
            ``abs(a - b)``, and that divided by the larger of the two. None if there are none. An int for integers.
        place: of the element that is furthest apart, or else of the first that differs.
        a, b: the element there.
    """

    elements: int
    differing: int
    unlike: int
    equal_numbers: int
    nans_only_a: int
    nans_only_b: int
    largest_absolute: int | float | None
    largest_relative: float | None
    place: tuple[int, ...]
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        path: components joined by ``/``.
        rank: None, or whose it is, where each rank has saved its own.
        kind: what of it differs.
        a, b: what the two have there: of "only_a" and "only_b" a :class:`Held` or None; of "value" the value; of "type"
            and "tie" a text; of "elements" the type, twice.
        detail: of elements, and of runs of values; else None.
    """

    path: str
    rank: int | None
    kind: DifferenceKind
    a: Any
    b: Any
    detail: ElementDifference | Items | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two checkpoints.

    Attributes:
        root: the persistent directory.
        manifest: of the step.
        remarks: lines about newer steps that cannot be used, and leaves that are suspect.
    """

    root: Path
    manifest: Manifest
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """All that a comparison has found.

    Attributes:
        a, b: the two.
        leaves, values: how many of each both have, and were compared.
        nbytes: of the leaves that were compared, in each.
        within, values_within: how many leaves and values differ in some bit, and by no more than the tolerance.
        differences: of what the trees have first, then of elements; each in the order of the tree.
        problems: lines about leaves that cannot be read, which may differ or not.
    """

    a: Compared
    b: Compared
    leaves: int
    values: int
    nbytes: int
    within: int
    values_within: int
    differences: tuple[Difference, ...]
    problems: tuple[str, ...]
