"""``deeppart diff``: compares two checkpoints, leaf by leaf."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
from rich.text import Text

from deeppart import offline
from deeppart.cli.commands import REFUSED, printable
from deeppart.cli.options import Place, place_argument, rank_option, sign_key_option
from deeppart.cli.output import command, count, counts, cut, line, progress, unchecked_line, value_text
from deeppart.model import show_bytes
from deeppart.part import Signing

#: Differences of each kind that are printed; --json has all of them.
_MOST_LINES = 20
_HEADINGS: dict[str, str] = {
    "only_a": "only in A",
    "only_b": "only in B",
    "type": "other type",
    "tie": "shares memory with another leaf",
    "value": "other value",
    "elements": "other elements, the worst first",
}


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("a finite number is expected")
    return value


def _lines(found: offline.Diff) -> Iterator[Any]:
    for name, side in (("A", found.a), ("B", found.b)):
        attempt = side.manifest.attempt
        about = f"  {side.root} step {attempt.step}, {count(attempt.world_size, 'rank')}"
        yield Text.assemble((name, "bold"), printable(about))
        for remark in side.remarks:
            yield line("   " + remark, "yellow")
        if side.manifest.signed and not found.signatures_checked:
            yield line("   " + unchecked_line(attempt.step), "yellow")
    for kind, heading in _HEADINGS.items():
        differences = [each for each in found.differences if each.kind == kind]
        if differences:
            yield line(heading, "bold")
        for each in sorted(differences, key=_badness)[:_MOST_LINES]:
            rank = "" if each.rank is None else f" (rank {each.rank})"
            yield Text(f"  {printable(each.path)}{rank}  {_text(each)}")
        if len(differences) > _MOST_LINES:
            yield line(f"  and {len(differences) - _MOST_LINES:,} more; --json lists all")
    for problem in found.problems:
        yield line(problem, "red")
    yield line(_summary(found), "bold")


def _badness(each: Any) -> tuple[bool, float]:
    """Sort key: NaN in only one of the two first, then by largest relative difference; otherwise the order is kept."""
    if each.kind != "elements":
        return False, 0.0
    has_nans = each.detail.nans_only_a or each.detail.nans_only_b
    return not has_nans, -(each.detail.largest_relative or 0.0)


def _text(each: Any) -> str:
    if each.kind == "elements":
        return f"{printable(each.a)}  {_elements_text(each.detail)}"
    if each.kind == "value":
        return f"{value_text(each.a)} | {value_text(each.b)}"
    if each.kind == "tie":
        return " | ".join("none" if owner is None else f"= {printable(owner)}" for owner in (each.a, each.b))
    if each.kind == "type":
        return f"{cut(each.a)} | {cut(each.b)}"
    held = each.a or each.b
    if held.leaves + held.values == 1 and held.nbytes == 0:
        return cut(held.text)
    inside = "" if held.values == 0 and held.leaves == 1 else f": {counts(held)}"
    return f"{cut(held.text)}{inside}  {show_bytes(held.nbytes)}"


def _elements_text(detail: Any) -> str:
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
    """Two elements; floats to seven digits if these differ."""
    if isinstance(a, float) and isinstance(b, float) and f"{a:.7g}" != f"{b:.7g}":
        return f"{a:.7g} | {b:.7g}"
    return f"{value_text(a)} | {value_text(b)}"


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _summary(found: offline.Diff) -> str:
    compared = f"{counts(found)}, {show_bytes(found.nbytes)}"
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


@command("Compare two checkpoints.", _lines, damage_code=REFUSED)  # damage must not look like a difference
@place_argument("a", "A")
@place_argument("b", "B")
@click.argument("keys", metavar="[KEYS]...", nargs=-1)
@rank_option("Rank whose per-rank leaves are compared; those of every rank if left out.")
@click.option(
    "--rtol",
    metavar="X",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Numbers are equal if they differ by at most X times the larger of the two.",
)
@click.option(
    "--atol",
    metavar="X",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Numbers are equal if they differ by at most X; 0: if they are the same number.",
)
@sign_key_option
def diff(
    a: Place,
    b: Place,
    keys: tuple[str, ...],
    rank: int | None,
    rtol: float | None,
    atol: float | None,
    signing: Signing | None,
) -> offline.Diff:
    """Compare the checkpoints A and B, each of them DIR, for its newest step, or DIR@STEP.

    Every byte of both is read and checked. Bit for bit, unless --rtol or --atol is given; together they allow
    ATOL + RTOL * max(abs(a), abs(b)). KEYS are globs over paths, as for deeppart.load: model '*.bias'.

    Exit code 0 if they are equal, 1 if they differ, and 2 for all else: wrong usage, no such checkpoint, damage.
    """
    tolerance = None if rtol is None and atol is None else offline.Tolerance(rtol or 0.0, atol or 0.0)
    with progress() as bar:
        return offline.compare(
            a.directory,
            b.directory,
            steps=(a.step, b.step),
            keys=keys,
            rank=rank,
            tolerance=tolerance,
            signing=signing,
            progress=bar,
        )
