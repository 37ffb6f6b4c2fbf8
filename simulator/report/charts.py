"""Pictures of results: for files, and for the page, where their background shows through."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppart.model import Level
from deeppart.model.units import show_seconds, show_share

from ..advise.choose import Advice, describe, shown
from ..advise.front import least_restart
from ..campaign.costs import NOTHING
from ..campaign.outcomes import Estimate, Summary
from ..measure.validate import WORST_TARGET, Validation
from ..timing.scale import Point
from ..timing.stages import Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A grey that can be read on white and on black.
_INK = "#7a7f87"
_COLOURS = ("#2f6fde", "#e0762c", "#2a9d6f", "#b3478f", "#8a6fd1", "#c9a227")
_LEVELS = {
    Level.LOCAL: "#2a9d6f",
    Level.PARTNER: "#2f6fde",
    Level.PARITY: "#8a6fd1",
    Level.PERSISTENT: "#e0762c",
    NOTHING: "#c0392b",
}
_SHARES = (
    ("lost", "done again", "#c0392b"),
    ("down", "down", "#7a7f87"),
    ("restoring", "restoring", "#8a6fd1"),
    ("short of nodes", "waiting for nodes", "#c9a227"),
    ("blocked", "blocked", "#e0762c"),
    ("waiting", "waiting for room", "#b3478f"),
    ("slowed", "slowed", "#2f6fde"),
    ("leaving", "saving before the end of a turn", "#4f9d69"),
    ("queued", "in the queue", "#b9bec6"),
)


def scaling_figure(points: Sequence[Point], job: Job) -> Figure:
    """Time against ranks: blocked, until complete on the nodes, until it is on the file system; and the speed-up."""
    figure, (left, right) = _figure(2)
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.strategy, point.compression), []).append(point)
    for number, ((strategy, compression), mine) in enumerate(series.items()):
        label = strategy if compression == "none" else f"{strategy}, {compression}"
        ranks, colour = [point.ranks for point in mine], _COLOURS[number % len(_COLOURS)]
        left.plot(ranks, [point.blocked_s for point in mine], "o-", color=colour, label=f"{label}: blocked", ms=4)
        left.plot(ranks, [point.serial_s for point in mine], "s:", color=colour, label=f"{label}: all stages", ms=3)
        right.plot(
            ranks, [point.serial_speedup for point in mine], "s:", color=colour, label=f"{label}: all stages", ms=3
        )
        right.plot(
            ranks, [point.blocked_speedup for point in mine], "o-", color=colour, label=f"{label}: blocked", ms=4
        )
    ranks = sorted({point.ranks for point in points})
    right.plot(ranks, ranks, "--", color=_INK, lw=1, label="ideal")
    for axis, title, unit in (
        (left, "time of one checkpoint", "seconds"),
        (right, "speed-up against rank 0 alone", "times"),
    ):
        axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel=unit, title=title)
    handles, labels = right.get_legend_handles_labels()
    _legend(figure, handles, labels)
    figure.suptitle(f"{job.state.name} on {job.machine.name}", color=_INK, fontsize=11)
    return figure


def campaign_figure(summary: Summary) -> Figure:
    """A figure of how the time is spent, and of the levels from which the job was restored."""
    figure, (left, right) = _figure(2)
    shares = [(label, summary.shares[name], colour) for name, label, colour in _SHARES if summary.shares[name].most > 0]
    places = range(len(shares))
    means = [100 * share.mean for _, share, _ in shares]
    errors = [[100 * length for length in side] for side in _least_and_most([share for _, share, _ in shares])]
    left.barh(places, means, color=[colour for *_, colour in shares], xerr=errors, ecolor=_INK)
    left.set_yticks(places, [label for label, *_ in shares])
    left.invert_yaxis()
    left.set(
        xlabel="% of the time (line: least to most)", title=f"not useful training; {summary.efficiency.mean:.1%} is"
    )
    names = list(summary.recoveries)
    values = [summary.recoveries[name] for name in names]
    right.bar(
        names, [value.mean for value in values], color=[_LEVELS[name] for name in names],
        yerr=_least_and_most(values), ecolor=_INK,
    )  # fmt: skip
    right.set(ylabel="times in a run", title="came back from")
    return figure


def _least_and_most(values: Sequence[Estimate]) -> list[list[float]]:
    """Lengths of the lines below and above each mean; never below 0, which rounding could leave them at."""
    return [[max(0.0, v.mean - v.least) for v in values], [max(0.0, v.most - v.mean) for v in values]]


def advice_figure(advice: Advice) -> Figure:
    """A figure of what the choices of the front lose, by cause; not of the time to come back that all of them take."""
    figure, (axis,) = _figure(1)
    choices, least = shown(advice), least_restart(advice.front)
    places = range(len(choices))
    left = [0.0] * len(choices)
    for part, label, colour in (
        ("cost", "writing", _COLOURS[0]), ("rework", "done again", "#c0392b"), ("restart", "coming back slower", _INK),
    ):  # fmt: skip
        widths = [100 * (getattr(choice.waste, part) - (least if part == "restart" else 0.0)) for choice in choices]
        axis.barh(places, widths, left=left, color=colour, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    names = [
        f"{describe(choice.job)}, {show_seconds(choice.cadence.period_s)}"
        + (" (advised)" if choice is advice.chosen else "")
        for choice in choices
    ]
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.set(xlabel=f"% of the time, beside {show_share(least)} for coming back whatever is chosen")
    _legend(figure, *axis.get_legend_handles_labels())
    return figure


def validation_figure(validation: Validation) -> Figure:
    """Predicted against measured, on the diagonal where they agree."""
    figure, (axis,) = _figure(1)
    for number, what in enumerate(("blocked", Level.LOCAL, Level.PERSISTENT)):
        mine = [each for each in validation.comparisons if each.what == what]
        axis.plot(
            [each.measured_s for each in mine],
            [each.predicted_s for each in mine],
            "o",
            color=_COLOURS[number],
            label=what,
        )
    ends = [each.measured_s for each in validation.comparisons]
    line = [min(ends), max(ends)]
    axis.plot(line, line, color=_INK, lw=1)
    for factor in (1 - WORST_TARGET, 1 + WORST_TARGET):
        axis.plot(line, [factor * end for end in line], ":", color=_INK, lw=1)
    axis.set(xscale="log", yscale="log", xlabel="measured, seconds", ylabel="predicted, seconds")
    _legend(figure, *axis.get_legend_handles_labels())
    return figure


def _legend(figure: Figure, handles: list[Any], labels: list[str]) -> None:
    """Below everything, where it hides nothing."""
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8, labelcolor=_INK)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file, on white."""
    figure.savefig(path, dpi=140, facecolor="white")


def svg(figure: Figure) -> str:
    """The figure as an element of a page, without a background; the same figure gives the same bytes."""
    import matplotlib

    text = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "deeppart"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _figure(panels: int) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(5.6 * panels if panels > 1 else 9.0, 4.2), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, panels, squeeze=False)[0])
    for axis in axes:
        axis.grid(True, which="major", color=_INK, alpha=0.25, lw=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(colors=_INK, which="both")
        axis.title.set_color(_INK)
        axis.title.set_fontsize(10)
        axis.xaxis.label.set_color(_INK)
        axis.yaxis.label.set_color(_INK)
        for side, spine in axis.spines.items():
            spine.set_color(_INK)
            spine.set_visible(side in ("left", "bottom"))
    return figure, axes
