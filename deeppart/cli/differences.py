"""How two checkpoints differ, as ``deeppart diff`` prints it: the worst first, or JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text

from deeppart.cli.commands import GOOD, NOT_GOOD, REFUSED, print_json, printable, tell
from deeppart.cli.options import Place
from deeppart.cli.output import console, count, manifest_json, progress_bar, record_json, to_json, unchecked_line
from deeppart.cli.values import cut, json_value, value_text
from deeppart.errors import FormatError, RestoreError, StructureMismatchError
from deeppart.model import show_bytes
from deeppart.offline.diff import compare
from deeppart.offline.diff.records import (
    Compared,
    Diff,
    Difference,
    DifferenceKind,
    ElementDifference,
    Items,
    Tolerance,
)
from deeppart.offline.inspect.listing import require_directory
from deeppart.part import Signing

#: Differences of a kind that are printed; --json has all of them.
_MOST_LINES = 20
_HEADINGS: dict[DifferenceKind, str] = {
    "only_a": "only in A",
    "only_b": "only in B",
    "type": "other type",
    "tie": "shares memory with another leaf",
    "value": "other value",
    "elements": "other elements, the worst first",
}


def show_differences(
    a: Place,
    b: Place,
    keys: tuple[str, ...],
    rank: int | None,
    tolerances: tuple[float | None, float | None],
    signing: Signing | None,
    *,
    as_json: bool,
) -> int:
    """Compare two checkpoints and print how they differ; returns the exit code, as diff(1) has it."""
    rtol, atol = tolerances
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    try:
        for place in (a, b):
            require_directory(place.directory)
        with progress_bar(console(), shown=not as_json) as progress:
            task = progress.add_task("", total=None)
            found = compare(
                a.directory,
                b.directory,
                steps=(a.step, b.step),
                keys=keys,
                rank=rank,
                tolerance=tolerance,
                signing=signing,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except (FormatError, RestoreError, StructureMismatchError) as error:
        return tell(error, REFUSED, as_json)  # nobody is to take damage for a difference
    if as_json:
        print_json(_document(found, tolerance, signing))
    else:
        _print(found, tolerance, signing)
    return REFUSED if found.problems else NOT_GOOD if found.differences else GOOD


# --- JSON -----------------------------------------------------------------------------------------------------------


def _document(found: Diff, tolerance: Tolerance | None, signing: Signing | None) -> dict[str, Any]:
    is_known = found.differences or not found.problems
    return {
        **record_json(found, without=("a", "b", "differences")),
        "a": _side_json(found.a),
        "b": _side_json(found.b),
        "equal": not found.differences if is_known else None,
        "tolerance": to_json(tolerance),
        "differences": [_difference_json(each) for each in found.differences],
        "signatures_checked": signing is not None,
    }


def _side_json(side: Compared) -> dict[str, Any]:
    return {**manifest_json(side.manifest), **record_json(side, without=("manifest",))}


def _difference_json(each: Difference) -> dict[str, Any]:
    document = record_json(each)
    if each.kind == "value":
        document |= {"a": json_value(each.a), "b": json_value(each.b)}
        document |= {"type_a": type(each.a).__name__, "type_b": type(each.b).__name__}
    return document


# --- for people -----------------------------------------------------------------------------------------------------


def _print(found: Diff, tolerance: Tolerance | None, signing: Signing | None) -> None:
    out = console()
    for name, side in (("A", found.a), ("B", found.b)):
        attempt = side.manifest.attempt
        line = f"  {side.root} step {attempt.step}, {count(attempt.world_size, 'rank')}"
        out.print(Text.assemble((name, "bold"), printable(line)), soft_wrap=True)
        for remark in side.remarks:
            out.print(Text("   " + printable(remark), "yellow"), soft_wrap=True)
        if signing is None and side.manifest.signed:
            out.print(Text("   " + unchecked_line(attempt.step), "yellow"), soft_wrap=True)
    for kind, heading in _HEADINGS.items():
        _print_kind(out, heading, [each for each in found.differences if each.kind == kind])
    for problem in found.problems:
        out.print(Text(printable(problem), "red"), soft_wrap=True)
    out.print(Text(_summary(found, tolerance), "bold"), soft_wrap=True)


def _print_kind(out: Console, heading: str, differences: list[Difference]) -> None:
    if not differences:
        return
    out.print(Text(heading, "bold"))
    for each in sorted(differences, key=_badness)[:_MOST_LINES]:
        rank = "" if each.rank is None else f" (rank {each.rank})"
        out.print(Text(f"  {printable(each.path)}{rank}  {_text(each)}"), soft_wrap=True)
    if len(differences) > _MOST_LINES:
        out.print(f"  and {len(differences) - _MOST_LINES:,} more; --json lists all")


def _badness(each: Difference) -> tuple[bool, float]:
    """Elements that are NaN in one of the two first, then by the largest relative difference; all else stays."""
    if not isinstance(each.detail, ElementDifference):
        return False, 0.0
    has_nans = each.detail.nans_only_a or each.detail.nans_only_b
    return not has_nans, -(each.detail.largest_relative or 0.0)


def _text(each: Difference) -> str:
    if each.kind == "elements":
        assert isinstance(each.detail, ElementDifference)
        return f"{printable(each.a)}  {_elements_text(each.detail)}"
    if isinstance(each.detail, Items):
        first = f"{each.detail.path}: {each.detail.a} | {each.detail.b}"
        return printable(
            f"{count(each.detail.count, 'item')} of {len(each.a)} | {len(each.b)} differ; the first at {first}"
        )
    if each.kind == "value":
        return f"{value_text(each.a)} | {value_text(each.b)}"
    if each.kind == "tie":
        return " | ".join("none" if owner is None else f"= {printable(owner)}" for owner in (each.a, each.b))
    if each.kind == "type":
        return f"{cut(each.a)} | {cut(each.b)}"
    held = each.a or each.b
    if held.leaves + held.values == 1 and held.nbytes == 0:
        return cut(held.text)
    inside = "" if held.values == 0 and held.leaves == 1 else f": {_counts(held.leaves, held.values)}"
    return f"{cut(held.text)}{inside}  {show_bytes(held.nbytes)}"


def _elements_text(detail: ElementDifference) -> str:
    texts = [f"{detail.differing:,} of {detail.elements:,} differ"]
    if detail.largest_absolute is not None:
        texts.append(f"by {_short(detail.largest_absolute)} at most, relative {_short(detail.largest_relative or 0.0)}")
    for nans, side in ((detail.nans_only_a, "A"), (detail.nans_only_b, "B")):
        if nans:
            texts.append(f"{nans:,} NaN only in {side}")
    if detail.equal_numbers and detail.equal_numbers == detail.unlike:
        texts.append("the same numbers: zeros of other sign, or NaNs of other bits")
    where = f"at {list(detail.place)} " if detail.place else ""
    return f"{', '.join(texts)}; {where}{_both(detail.a, detail.b)}"


def _both(a: Any, b: Any) -> str:
    """Two elements: floats in seven digits, if these tell them apart."""
    if isinstance(a, float) and isinstance(b, float) and f"{a:.7g}" != f"{b:.7g}":
        return f"{a:.7g} | {b:.7g}"
    return f"{value_text(a)} | {value_text(b)}"


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _counts(leaves: int, values: int) -> str:
    return f"{count(leaves, 'leaf')} and {count(values, 'value')}"


def _summary(found: Diff, tolerance: Tolerance | None) -> str:
    compared = f"{_counts(found.leaves, found.values)}, {show_bytes(found.nbytes)}"
    alike = [(found.within, "leaf"), (found.values_within, "value")]
    alike_text = " and ".join(count(number, noun) for number, noun in alike if number)
    within = f"; {alike_text} only within the tolerance" if alike_text else ""
    if found.problems:
        known = "they differ" if found.differences else "no difference was found"
        return f"not everything can be read: {known} in what can be, {compared}{within}"
    if not found.differences:
        how = "bit for bit" if not within else "within the tolerance"
        return f"equal, {how}: {compared}{within}"
    kinds = Counter(each.kind for each in found.differences)
    parts = [
        f"{kinds['elements']:,} of {count(found.leaves, 'leaf')}",
        f"{kinds['value']:,} of {count(found.values, 'value')}",
    ]
    parts += [f"{kinds[kind]:,} {_HEADINGS[kind]}" for kind in ("type", "tie", "only_a", "only_b") if kinds[kind]]
    return f"they differ: {', '.join(parts)}{within}"
