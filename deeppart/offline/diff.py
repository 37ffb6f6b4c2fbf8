"""Compares two committed checkpoints: first their rows, then the elements of leaves that both have.

They are compared as :func:`deeppart.load` would return them: an object is the result of its ``state_dict()``; the order
of keys and the way in which a leaf was saved (replicated, per rank, sharded) do not matter.

Arrays are compared by their bits first, and only elements with different bits are compared as numbers. Differences of
integers are exact; floats of less than 64 bits are compared as float64, which represents all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from deeppart.errors import DeeppartError, StructureMismatchError, one_line
from deeppart.model import Manifest
from deeppart.offline.elements import Numbers, bits, count_of, numbers, octets_of, pieces
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.reading import OpenCheckpoint, Row
from deeppart.part import Signing
from deeppart.state.paths import ExactPath, exact
from deeppart.state.tensors import Array, Bytes, LeafType
from deeppart.state.tree import describe_leaf_value
from deeppart.state.values import same_value

#: only_a, only_b: in one checkpoint only. type: different dtype, shape or container. tie: shares memory with different
#: leaves. value: different small value. elements: different elements of a tensor or array.
DifferenceKind = Literal["only_a", "only_b", "type", "tie", "value", "elements"]
Progress = Callable[[int, int], None]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers are equal if they differ by at most ``atol + rtol * max(abs(a), abs(b))``.

    Then 0.0 and -0.0 are equal, and so are two NaNs.
    """

    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Held:
    """The content at a path that only one checkpoint has. Fields: docs/commands.md, diff."""

    text: str
    leaves: int
    values: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """The difference of two arrays of one type. Fields: docs/commands.md, diff."""

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
    detail: ElementDifference | None = None

    @property
    def type_a(self) -> str | None:
        """The Python type of a small value in the first checkpoint."""
        return type(self.a).__name__ if self.kind == "value" else None

    @property
    def type_b(self) -> str | None:
        """The same in the second checkpoint."""
        return type(self.b).__name__ if self.kind == "value" else None


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two checkpoints. Fields: docs/commands.md, diff."""

    root: Path
    manifest: Manifest
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """The result of a comparison. Fields: docs/commands.md, diff."""

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
    def good(self) -> bool | None:
        """Whether they are equal; None if something cannot be read, because damage is not a difference."""
        return None if self.problems else not self.differences

    @property
    def equal(self) -> bool | None:
        """Whether they are equal; None if something cannot be read, and the rest is equal."""
        return not self.differences if self.differences or not self.problems else None


def compare(
    a: Path,
    b: Path,
    *,
    steps: tuple[int | None, int | None] = (None, None),
    keys: Sequence[str] = (),
    rank: int | None = None,
    tolerance: Tolerance | None = None,
    signing: Signing | None = None,
    progress: Progress = lambda done, total: None,
) -> Diff:
    """Compare two committed checkpoints, leaf by leaf, as :func:`deeppart.load` would give them.

    All bytes of both are read and checked, even chunks with equal digests: a digest in an index describes what was
    saved, not the current bytes. At most 256 MiB of leaves, or one larger leaf of each, are in memory at a time.
    """

    def use(*chosen: Chosen) -> Diff:
        with ExitStack() as files:
            comparing = _Comparing(files, chosen, rank or 0, tolerance)
            comparing.compare(tuple(keys), rank, progress)
        sides = [Compared(root, each.manifest, each.remarks) for root, each in zip((a, b), chosen, strict=True)]
        return replace(comparing.result(*sides), tolerance=tolerance, signatures_checked=signing is not None)

    def with_a(chosen_a: Chosen) -> Diff:
        return with_checkpoint(b, steps[1], lambda chosen_b: use(chosen_a, chosen_b), signing)

    return with_checkpoint(a, steps[0], with_a, signing)


class _Side:
    """The rows of one checkpoint as one rank has saved it, in order, including items of containers of small values.

    Without per-rank items if the checkpoint does not have this rank; without any rows if the globs match nothing.
    """

    def __init__(self, checkpoint: OpenCheckpoint, rank: int, keys: Sequence[str]) -> None:
        self.lacks_rank = rank >= checkpoint.world_size
        self.checkpoint = checkpoint if self.lacks_rank or rank == checkpoint.rank else checkpoint.as_rank(rank)
        self.refusal: StructureMismatchError | None = None
        self._rows: list[Row] = []
        try:
            tree, _ = self.checkpoint.select(keys or None)
            self._rows += self.checkpoint.rows(tree, items=True)
        except StructureMismatchError as error:
            self.refusal = error
        self._rows = [row for row in self._rows if not (row.own and self.lacks_rank)]
        self.places = {exact(row.path): place for place, row in enumerate(self._rows)}

    def row(self, key: ExactPath) -> Row | None:
        """The row at a path."""
        return self._rows[self.places[key]] if key in self.places else None

    def kind(self, row: Row) -> LeafType | None:
        """The type of a leaf."""
        return None if row.leaf is None else self.checkpoint.target.types[row.leaf]

    def is_own(self, key: ExactPath) -> bool:
        """True if the item is per rank; for a container, if everything in it is."""
        inside = self._inside(key)
        return bool(inside) and all(row.own for row in inside)

    def held(self, key: ExactPath) -> Held:
        """The content at a path and below it."""
        kinds = list(map(self.kind, self._inside(key)))
        leaves = [kind for kind in kinds if kind is not None]
        text = self.text(self._rows[self.places[key]])
        return Held(text, len(leaves), len(kinds) - len(leaves), sum(kind.nbytes for kind in leaves))

    def text(self, row: Row) -> str:
        """Type, or kind and size, as text."""
        if row.is_container:
            name, size = row.container
            return f"{name} of {size}"
        return str(self.kind(row) or f"{type(row.value).__name__} {describe_leaf_value(row.value)}")

    def _inside(self, key: ExactPath) -> list[Row]:
        """The leaves and values at a path and below it, which are the rows after it."""
        place = self.places[key]
        end = next(
            (at for at in range(place, len(self._rows)) if self._rows[at].path[: len(key)] != self._rows[place].path),
            None,
        )
        return [row for row in self._rows[place:end] if not row.is_container]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A leaf of one type in both checkpoints: its name, and its number in each."""

    path: str
    rank: int | None
    kind: LeafType
    leaves: tuple[int, int]

    @property
    def name(self) -> str:
        return self.path if self.rank is None else f"{self.path} (rank {self.rank})"


class _Comparing:
    """One comparison."""

    def __init__(
        self,
        files: ExitStack,
        chosen: Sequence[Chosen],
        rank: int,
        tolerance: Tolerance | None,
    ) -> None:
        self._both = [OpenCheckpoint(files, each.step, rank) for each in chosen]
        self._tolerance = tolerance
        self._leaves = self._nbytes = self._values = self._within = self._values_within = 0
        self._of_rows: list[Difference] = []
        self._of_elements: list[Difference] = []
        self._problems: list[str] = []

    def compare(self, keys: Sequence[str], rank: int | None, progress: Progress) -> None:
        """Compare everything."""
        done = total = 0
        for each in self._ranks() if rank is None else [rank]:
            is_first = each == (rank or 0)
            rows = [_Side(checkpoint, each, keys) for checkpoint in self._both]
            refusals = [side.refusal for side in rows if side.refusal is not None]
            if is_first and len(refusals) == len(rows):
                raise refusals[-1]
            pairs = self._compare_rows(rows, each, is_first)
            sides = [side.checkpoint for side in rows]
            by_leaf: dict[int, list[_Pair]] = {}
            for pair in pairs:
                by_leaf.setdefault(pair.leaves[0], []).append(pair)
            total += sum(pair.kind.nbytes for pair in pairs)
            found: dict[_Pair, Difference] = {}
            for leaves in sides[0].batches(by_leaf):
                batch = [pair for leaf in sorted(leaves) for pair in by_leaf[leaf]]
                found |= self._compare_elements(sides, batch)
                done += sum(pair.kind.nbytes for pair in batch)
                progress(done, total)
            self._of_elements += [found[pair] for pair in pairs if pair in found]

    def _ranks(self) -> range:
        """The ranks whose per-rank leaves are compared; a single one if there are none."""
        if not any(checkpoint.has_own for checkpoint in self._both):
            return range(1)
        return range(max(checkpoint.world_size for checkpoint in self._both))

    def _compare_rows(self, sides: Sequence[_Side], rank: int, is_first: bool) -> list[_Pair]:
        """Compare rows without reading elements, and return the leaves to read. After the first rank, only per-rank
        items.
        """
        pairs = []
        one, other = sides
        for key in {**one.places, **other.places}:
            a, b = one.row(key), other.row(key)
            known = a or b
            assert known is not None
            own = any(key in side.places and side.is_own(key) for side in sides)
            if not own and not is_first:
                continue
            path = known.name

            def add(kind: DifferenceKind, of_a: Any, of_b: Any, path: str = path, own: bool = own) -> None:
                self._of_rows.append(Difference(path, rank if own else None, kind, of_a, of_b))

            if a is None or b is None:
                if a is not None and _is_alone(a, key, other):
                    add("only_a", one.held(key), None)
                elif b is not None and _is_alone(b, key, one):
                    add("only_b", None, other.held(key))
            elif a.is_container and b.is_container:
                if a.container[0] != b.container[0]:
                    add("type", one.text(a), other.text(b))
            elif a.is_container or b.is_container or one.kind(a) != other.kind(b):
                add("type", one.text(a), other.text(b))
            elif a.leaf is not None and b.leaf is not None:
                kind = one.checkpoint.target.types[a.leaf]
                pairs.append(_Pair(path, rank if own else None, kind, (a.leaf, b.leaf)))
                tied = one.checkpoint.tied_to(a.leaf), other.checkpoint.tied_to(b.leaf)
                if tied[0] != tied[1]:
                    add("tie", *tied)
            else:
                self._values += 1
                if not same_small(a.value, b.value, self._tolerance):
                    add("value", a.value, b.value)
                elif self._tolerance is not None:
                    self._values_within += not same_small(a.value, b.value, None)
        return pairs

    def _compare_elements(self, sides: list[OpenCheckpoint], batch: list[_Pair]) -> dict[_Pair, Difference]:
        differences: dict[_Pair, Difference] = {}
        arrays: list[dict[int, Array]] = []
        errors: list[dict[int, DeeppartError]] = []
        for at, side in enumerate(sides):
            read, damaged = side.read_sound({pair.leaves[at] for pair in batch})
            arrays.append(read)
            errors.append(damaged)
        for pair in batch:
            failed = [(name, errors[at].get(pair.leaves[at])) for at, name in enumerate("AB")]
            problems = [f"{name}: {pair.name} cannot be read: {one_line(each)}" for name, each in failed if each]
            self._problems += problems
            if problems:
                continue
            self._leaves += 1
            self._nbytes += pair.kind.nbytes
            one, other = (arrays[at][pair.leaves[at]] for at in range(2))
            found = compare_arrays(one, other, pair.kind, self._tolerance)
            if found is not None and found.differing:
                kind = str(pair.kind)
                differences[pair] = Difference(pair.path, pair.rank, "elements", kind, kind, found)
            self._within += found is not None and not found.differing
        return differences

    def result(self, a: Compared, b: Compared) -> Diff:
        """The result of the comparison."""
        counts = (self._leaves, self._values, self._nbytes, self._within, self._values_within)
        return Diff(a, b, *counts, (*self._of_rows, *self._of_elements), tuple(self._problems))


def _is_alone(row: Row, key: ExactPath, others: _Side) -> bool:
    """True if an item that the other checkpoint lacks has to be named itself, because its container is not lacking."""
    if not others.places:  # the globs match nothing there
        return not row.is_container
    above = others.row(key[:-1])
    return above is not None and above.is_container


# --- elements ---------------------------------------------------------------------------------------------------------


def compare_arrays(a: Array, b: Array, kind: LeafType, tolerance: Tolerance | None) -> ElementDifference | None:
    """The difference of two arrays; None if their bits are equal.

    With a tolerance, the number of differing elements in the result may be 0.
    """
    comparing = _Elements(kind, tolerance)
    octets_a, octets_b = octets_of(a), octets_of(b)
    done = 0
    for piece in pieces(kind):
        bits_a, bits_b = bits(octets_a[piece], kind), bits(octets_b[piece], kind)
        unlike = bits_a != bits_b
        places = np.flatnonzero(unlike if unlike.ndim == 1 else unlike.any(axis=1))
        if len(places):
            comparing.take(octets_a[piece], octets_b[piece], places, done)
        done += len(bits_a)
    return comparing.result()


class _Elements:
    """The comparison of one pair."""

    def __init__(self, kind: LeafType, tolerance: Tolerance | None) -> None:
        self._kind, self._tolerance = kind, tolerance
        self._differing = self._unlike = self._equal = self._nans_a = self._nans_b = 0
        self._absolute: int | float | None = None
        self._relative: float | None = None
        #: (index in C order, value in a, value in b) of the element that differs most.
        self._worst: tuple[int, Any, Any] | None = None

    def take(self, octets_a: Bytes, octets_b: Bytes, places: npt.NDArray[np.int64], before: int) -> None:
        """Add the elements of a piece whose bits differ."""
        self._unlike += len(places)
        x, y = numbers(octets_a, self._kind), numbers(octets_b, self._kind)
        if x is None or y is None:
            self._differing += len(places)
            if self._worst is None:
                place, dtype = int(places[0]), np.dtype(self._kind.dtype)
                self._worst = before + place, octets_a.view(dtype)[place], octets_b.view(dtype)[place]
            return
        x, y = x[places], y[places]
        with np.errstate(all="ignore"):
            same, nan_a, nan_b, absolute, relative, scale = _apart(x, y)
            self._equal += int(np.count_nonzero(same))
            counts = np.ones(len(places), dtype=np.bool_)
            if self._tolerance is not None:
                counts = ~same & ~self._is_close(absolute, scale)
        self._differing += int(np.count_nonzero(counts))
        self._nans_a += int(np.count_nonzero(nan_a))
        self._nans_b += int(np.count_nonzero(nan_b))
        measured = counts & ~same & ~nan_a & ~nan_b
        if measured.any():
            furthest = int(np.flatnonzero(measured)[absolute[measured].argmax()])
            most = int(absolute[furthest]) if absolute.dtype.kind == "u" else float(absolute[furthest])
            if self._absolute is None or most > self._absolute:
                self._absolute, self._worst = most, (before + int(places[furthest]), x[furthest], y[furthest])
            self._relative = max(self._relative or 0.0, float(relative[measured].max()))
        if self._worst is None and counts.any():
            first = int(counts.argmax())
            self._worst = before + int(places[first]), x[first], y[first]

    def _is_close(self, absolute: Numbers, scale: Numbers) -> _Mask:
        assert self._tolerance is not None
        most = self._tolerance.atol + self._tolerance.rtol * scale
        close: _Mask = (absolute <= most) & np.isfinite(scale)
        return close

    def result(self) -> ElementDifference | None:
        """The difference; None if there is none."""
        if not self._unlike:
            return None
        elements = count_of(self._kind)
        place, a, b = self._worst or (0, None, None)
        per_item = elements // max(1, self._kind.nbytes // self._kind.itemsize)
        index = tuple(map(int, np.unravel_index(place // per_item, self._kind.shape)))
        counts = (elements, self._differing, self._unlike, self._equal, self._nans_a, self._nans_b)
        return ElementDifference(*counts, self._absolute, self._relative, index, _item(a), _item(b))


def _apart(x: Numbers, y: Numbers) -> tuple[_Mask, _Mask, _Mask, Numbers, Numbers, Numbers]:
    """For elements with different bits: masks of those that are equal numbers, NaN only in x, and NaN only in y; then
    absolute and relative differences, and the larger absolute values.
    """
    if x.dtype.kind in "biu":
        none = np.zeros(len(x), dtype=np.bool_)
        absolute = _exactly_apart(x, y)
        scale = np.maximum(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
        return x == y, none, none, absolute, absolute / np.maximum(scale, 1.0), scale
    nan_x, nan_y = np.isnan(x), np.isnan(y)
    absolute, scale = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
    absolute[np.isnan(absolute)] = np.inf  # differences of infinities in complex numbers; values of NaNs do not matter
    relative = np.where(np.isfinite(absolute), absolute / scale, np.inf)
    too_far = np.isinf(absolute) & np.isfinite(scale)  # the difference overflows, but the quotient does not
    relative[too_far] = np.abs(x[too_far] / scale[too_far] - y[too_far] / scale[too_far])
    return (x == y) | (nan_x & nan_y), nan_x & ~nan_y, nan_y & ~nan_x, absolute, relative, scale


def _exactly_apart(x: Numbers, y: Numbers) -> npt.NDArray[np.uint64]:
    """Distances of integers, which fit into 64 bits."""
    wide = np.uint64 if x.dtype.kind in "bu" else np.int64
    larger, smaller = np.maximum(x, y).astype(wide), np.minimum(x, y).astype(wide)
    return larger.view(np.uint64) - smaller.view(np.uint64)  # modulo 2^64, as C computes


def _item(element: Any) -> Any:
    """An element as a Python number; texts, times and long doubles stay numpy scalars."""
    if isinstance(element, (np.bool_, np.integer, np.float64, np.complex128)):
        return element.item()
    return element


def same_small(a: Any, b: Any, tolerance: Tolerance | None) -> bool:
    """True if two small values (not containers) are identical, or numbers of one type within the tolerance."""
    if type(a) is not type(b):
        return False
    return same_value(a, b) or (tolerance is not None and _is_close(a, b, tolerance))


def _is_close(a: Any, b: Any, tolerance: Tolerance) -> bool:
    if isinstance(a, np.generic):
        if a.dtype != b.dtype or a.dtype.kind not in "iufc":
            return False
        if a.dtype.kind in "iu" or a.dtype.itemsize <= np.dtype(np.float64).itemsize * (1 + (a.dtype.kind == "c")):
            a, b = a.item(), b.item()
    if isinstance(a, bool) or not isinstance(a, (int, float, complex, np.inexact)):
        return False
    if isinstance(a, int):  # exact for any size
        return bool(abs(a - b) <= Fraction(tolerance.atol) + Fraction(tolerance.rtol) * max(abs(a), abs(b)))
    if a == b or (np.isnan(a) and np.isnan(b)):
        return True
    if not (np.isfinite(a) and np.isfinite(b)):
        return False
    return bool(abs(a - b) <= tolerance.atol + tolerance.rtol * max(abs(a), abs(b)))
