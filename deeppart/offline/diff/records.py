"""What a comparison of two checkpoints finds: records for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

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
    """What one checkpoint alone has at a path. Fields: docs/commands.md, diff."""

    text: str
    leaves: int
    values: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Items:
    """How two containers of small values differ. Fields: docs/commands.md, diff."""

    count: int
    path: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """How two arrays of one type differ. Fields: docs/commands.md, diff."""

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
    """One difference. Fields: docs/commands.md, diff."""

    json_also: ClassVar = ("type_a", "type_b")

    path: str
    rank: int | None
    kind: DifferenceKind
    a: Any = field(metadata={"json": "value"})
    b: Any = field(metadata={"json": "value"})
    detail: ElementDifference | Items | None = None

    @property
    def type_a(self) -> str | None:
        """Of a small value, its Python type."""
        return type(self.a).__name__ if self.kind == "value" else None

    @property
    def type_b(self) -> str | None:
        """The same of the other one."""
        return type(self.b).__name__ if self.kind == "value" else None


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two checkpoints. Fields: docs/commands.md, diff."""

    root: Path
    manifest: Manifest
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """All that a comparison has found. Fields: docs/commands.md, diff."""

    json_also: ClassVar = ("equal",)

    a: Compared
    b: Compared
    leaves: int
    values: int
    nbytes: int
    within: int
    values_within: int
    differences: tuple[Difference, ...]
    problems: tuple[str, ...]
    tolerance: Tolerance | None = None
    signatures_checked: bool = False

    @property
    def equal(self) -> bool | None:
        """None if nothing differs in what can be read, and something cannot."""
        return not self.differences if self.differences or not self.problems else None
