"""The charts of a comparison: all sides on the same scales."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model import Level
from deeppart.model.units import show_bytes, show_seconds

from ..advise.compare import Side, least_restart_of
from .advice_charts import PARTS, losses
from .chart import Chart, Mark, Panel, log_axis, log_time_axis, rows, rows_height
from .palette import light

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = {"point": "o", "square": "s", "triangle": "^"}
#: What is shown of a checkpoint: (level, or nothing for the call), in words, colour, shape.
_TIMES = (
    ("", "training waits", "pink", "point"),
    (Level.LOCAL, "until local", "violet", "square"),
    (Level.PARTNER, "until partner", "teal", "square"),
    (Level.PARITY, "until parity", "olive", "square"),
    (Level.PERSISTENT, "until persistent", "brown", "triangle"),
)
_BYTES = (
    ("drained_daily_bytes", "to the file system", "brown", "triangle"),
    ("node_daily_bytes", "to each node's drive", "violet", "square"),
)


def comparison_charts(sides: Sequence[Side]) -> list[Chart]:
    """Times of a checkpoint; and where anything fails, what is lost and what is written."""
    labels, height = [side.label for side in sides], rows_height(len(sides))
    there = {"", *(level for side in sides for level in side.complete_s)}
    key = tuple(Mark(words, colour, shape) for level, words, colour, shape in _TIMES if level in there)
    charts = [
        Chart("times", (Panel("Time of one checkpoint", partial(_times, sides, labels), height),), key, "Comparison")
    ]
    if any(side.choice is not None for side in sides):
        lost = Panel("What is lost as advised, and time between calls", partial(_losses, sides, labels), height)
        charts.append(Chart("losses", (lost,), tuple(Mark(words, colour) for _, words, colour in PARTS)))
        written = Panel("Bytes a day as advised", partial(_written, sides, labels), height)
        charts.append(Chart("written", (written,), _marks_of_bytes(sides)))
    return charts


def _marks_of_bytes(sides: Sequence[Side]) -> tuple[Mark, ...]:
    return tuple(
        Mark(words, colour, shape)
        for name, words, colour, shape in _BYTES
        if any(side.choice is not None and getattr(side.choice, name) for side in sides)
    )


def together(charts: Sequence[Chart]) -> Chart:
    """All of them as one picture."""
    marks = dict.fromkeys(mark for chart in charts for mark in chart.key)
    return Chart("comparison", tuple(panel for chart in charts for panel in chart.panels), tuple(marks), "Comparison")


def _times(sides: Sequence[Side], labels: Sequence[str], axes: Axes) -> None:
    every = []
    for level, _, colour, shape in _TIMES:
        found = [(side.complete_s.get(level) if level else side.blocked_s, row) for row, side in enumerate(sides)]
        mine = [(seconds, row) for seconds, row in found if seconds]
        every += [seconds for seconds, _ in mine]
        if mine:
            axes.plot(*zip(*mine, strict=True), _MARKERS[shape], color=light(colour), ms=8)
    rows(axes, labels)
    log_time_axis(axes, "x", every, most=5)
    axes.set_xlabel("from the call on")


def _losses(sides: Sequence[Side], labels: Sequence[str], axes: Axes) -> None:
    least = least_restart_of(sides)
    parts, words = [], []
    for side in sides:
        if side.choice is None:
            parts.append((0.0, 0.0, 0.0))
            words.append("nothing fails there")
        else:
            waste = side.choice.waste
            parts.append((waste.cost, waste.rework, waste.restart - least))
            words.append(f"every {show_seconds(side.choice.cadence.period_s)}")
    losses(axes, parts, words)
    rows(axes, labels)
    axes.set_xlabel("share of the time that is lost")


def _written(sides: Sequence[Side], labels: Sequence[str], axes: Axes) -> None:
    every = []
    for name, _, colour, shape in _BYTES:
        found = [(getattr(side.choice, name) if side.choice else 0.0, row) for row, side in enumerate(sides)]
        mine = [(nbytes, row) for nbytes, row in found if nbytes]
        every += [nbytes for nbytes, _ in mine]
        if mine:
            axes.plot(*zip(*mine, strict=True), _MARKERS[shape], color=light(colour), ms=8)
    rows(axes, labels)
    log_axis(axes, "x", every, show_bytes, most=4)
    axes.set_xlabel("bytes a day")
