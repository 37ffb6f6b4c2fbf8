"""The charts of ways to come back: the pieces of each after each class of failures, and the share of the time lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model.units import show_seconds, show_share

from ..advise.compare import PARTS, REPLAY, RESTORE, Comparison
from ..machine.record import PIECES
from .chart import SMALL, Chart, Mark, Panel, bars, linear_axis, rows, rows_height, show_part, time_axis
from .palette import SERIES, light

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Of one failure; writing is not paid by failures.
OF_ONE = (*PIECES, RESTORE)
_LOST = {"process": "a process", "node": "a node", "group": "a group of nodes", "system": "everything"}
#: Of parts, in their order; hardly a machine has more than the series have colours.
_COLOURS = (*SERIES, "soft", "ink", "line")


def not_all_zero(names: Iterable[str], values: Iterable[Mapping[str, float]]) -> list[str]:
    """Those of some names that are worth a column."""
    known = list(values)
    return [name for name in names if any(each.get(name) for each in known)]


def words_of(part: str) -> str:
    """A piece in words."""
    return part.replace("_", " ")


def after_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """For each class of failures, each way's time until training goes on, by piece, and the replay behind it."""
    kinds = list(dict.fromkeys(kind for each in found for kind in each.after))
    parts_s = {
        (each.way, kind): {**each.after[kind].pieces, REPLAY: each.after[kind].replay_s}
        for each in found
        for kind in kinds
    }
    colours = _colours(not_all_zero((*OF_ONE, REPLAY), parts_s.values()))
    panels = [
        Panel(
            f"After the loss of {_LOST.get(kind, f'a group of nodes ({kind})')}",
            partial(_after, {each.way: parts_s[each.way, kind] for each in found}, colours, mode),
            rows_height(len(found)),
        )
        for kind in kinds
    ]
    return Chart("after", tuple(panels), _key(colours))


def share_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """The share of the time that each way loses, by part."""
    colours = _colours(not_all_zero(PARTS, (each.shares for each in found)))
    draw = partial(_shares, {each.way: each.shares for each in found}, colours, mode)
    return Chart("shares", (Panel("Share of the time that is lost", draw, rows_height(len(found))),), _key(colours))


def _colours(parts: Sequence[str]) -> dict[str, str]:
    return dict(zip(parts, _COLOURS, strict=False))


def _key(colours: Mapping[str, str]) -> tuple[Mark, ...]:
    return tuple(Mark(words_of(part), colour) for part, colour in colours.items())


def _after(ways: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], mode: str, axes: Axes) -> None:
    ends = _stacked(ways, colours, mode, axes)
    _at_ends(axes, ends, [show_seconds(end) for end in ends])
    time_axis(axes, "x", 1.4 * max(ends), 4)


def _shares(ways: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], mode: str, axes: Axes) -> None:
    ends = _stacked(ways, colours, mode, axes)
    _at_ends(axes, ends, [show_share(end) for end in ends])
    linear_axis(axes, "x", 1.4 * max(ends), show_part, 4)
    axes.set_xlabel("share of the time")


def _stacked(ways: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], mode: str, axes: Axes) -> list[float]:
    """A row for each way, of which the machine's own stands out; returns where its bar ends."""
    ends = [0.0] * len(ways)
    for part, colour in colours.items():
        widths = [parts.get(part, 0.0) for parts in ways.values()]
        bars(axes, widths, colour, ends)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    rows(axes, list(ways), marked=list(ways).index(mode))
    return ends


def _at_ends(axes: Axes, ends: Sequence[float], words: Sequence[str]) -> None:
    for place, (end, text) in enumerate(zip(ends, words, strict=True)):
        axes.annotate(
            text, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=SMALL, color=light("soft")
        )
