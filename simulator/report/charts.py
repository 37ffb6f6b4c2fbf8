"""The charts of a scaling study, a campaign and a validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.model.units import show_share

from ..campaign.outcomes import Estimate, Summary, show_number
from ..measure.validate import WORST_TARGET, Validation
from ..timing.scale import Point
from ..timing.stages import TORCH_SAVE, Job, torch_save_words
from .chart import (
    Chart,
    Mark,
    Panel,
    bars,
    linear_axis,
    log_axis,
    log_time_axis,
    rows,
    rows_height,
    show_count,
    show_part,
    show_times,
)
from .palette import SERIES, light

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Show = Callable[[float], str]
#: How the time that is not useful training is spent: (name in the summary, in words).
_SHARES = (
    ("lost", "done again after failures"),
    ("down", "down, until ranks are up again"),
    ("restoring", "restoring"),
    ("short of nodes", "waiting for nodes"),
    ("blocked", "blocked by checkpoints"),
    ("waiting", "waiting for room in memory"),
    ("slowed", "slowed by work in the background"),
    ("leaving", "saving before the end of a turn"),
    ("queued", "in the queue"),
)
#: What a validation compares: name, words and shape of each group of marks.
_WHAT = (
    (("blocked",), "blocked", "point"),
    ((Level.LOCAL,), "until local", "square"),
    (REDUNDANT_LEVELS, "until copied, or parity", "square"),
    ((Level.PERSISTENT,), "until persistent", "triangle"),
    (("restore",), "until restored", "point"),
    (("trained",), "training, with a checkpoint", "triangle"),
)


def scaling_chart(points: Sequence[Point], job: Job) -> Chart:
    """Time against ranks: blocked, and until all stages are through; and the speed-up."""
    colours: dict[str, str] = {}
    for point in points:
        colours.setdefault(point.strategy, SERIES[len(colours) % len(SERIES)])
    compressions = list(dict.fromkeys(point.compression for point in points))
    saved = torch_save_words(job.state.layout)
    names = {TORCH_SAVE: f"{TORCH_SAVE} ({saved})"}
    key = [Mark(names.get(strategy, strategy), colour) for strategy, colour in colours.items()]
    key += [Mark("training waits", "soft", "line"), Mark("all stages, one after the other", "soft", "dotted")]
    if len(compressions) > 1:
        key += [Mark("compressed" if name != "none" else "not compressed", "soft", shape)
                for name, shape in zip(compressions, ("point", "hollow"), strict=False)]  # fmt: skip
    key.append(Mark("as many times as there are ranks", "soft", "dashed"))
    panels = (
        Panel("Time of one checkpoint", partial(_times, points, colours, compressions)),
        Panel(f"Times as fast as {saved}", partial(_speedups, points, colours, compressions)),
    )
    return Chart("scaling", panels, tuple(key), f"{job.state.name} on {job.machine.name}")


def _times(points: Sequence[Point], colours: dict[str, str], compressions: Sequence[str], axes: Axes) -> None:
    _lines(points, colours, compressions, axes, ("blocked_s", "serial_s"))
    log_time_axis(axes, "y", [seconds for point in points for seconds in (point.blocked_s, point.serial_s)])


def _speedups(points: Sequence[Point], colours: dict[str, str], compressions: Sequence[str], axes: Axes) -> None:
    _lines(points, colours, compressions, axes, ("blocked_speedup", "serial_speedup"))
    ranks = sorted({point.ranks for point in points})
    axes.plot(ranks, ranks, "--", color=light("soft"), lw=1.2)
    all_values = [value for point in points for value in (point.blocked_speedup, point.serial_speedup)]
    log_axis(axes, "y", [*all_values, *map(float, ranks)], show_times)


def _lines(
    points: Sequence[Point], colours: dict[str, str], compressions: Sequence[str], axes: Axes, names: tuple[str, str]
) -> None:
    """A line for each strategy and compression, and each of two numbers."""
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.strategy, point.compression), []).append(point)
    for (strategy, compression), mine in series.items():
        colour = light(colours[strategy])
        face = colour if compression == compressions[0] else light("card")
        for name, style in zip(names, ("-", ":"), strict=True):
            axes.plot(
                [point.ranks for point in mine], [getattr(point, name) for point in mine], style, marker="o", ms=4,
                color=colour, markerfacecolor=face, lw=1.6,
            )  # fmt: skip
    log_axis(axes, "x", [float(point.ranks) for point in points], show_count, most=5)
    axes.set_xlabel("ranks")


def campaign_chart(summary: Summary) -> Chart:
    """How the time is spent that is not useful training, and the levels from which the job was restored."""
    shares = [(words, summary.shares[name]) for name, words in _SHARES if summary.shares[name].most > 0]
    panels = []
    if shares:
        title = f"Not useful training: {show_share(1 - summary.efficiency.mean)} of the time"
        panels.append(
            Panel(
                title, partial(_estimates, shares, "share of the time", show_share, show_part), rows_height(len(shares))
            )
        )
    if summary.recoveries:
        found = [(_FROM.get(name, name), value) for name, value in summary.recoveries.items()]
        panels.append(
            Panel(
                "Came back from",
                partial(_estimates, found, "times in a run", show_number, show_count),
                rows_height(len(found)),
            )
        )
    return Chart("campaign", tuple(panels))


_FROM = {
    "none": "nothing: from the beginning",
    Level.PARTNER: "partner: copies on other nodes",
    Level.PARITY: "parity: rebuilt from the group",
    Level.LOCAL: "local: the nodes' own storage",
    Level.PERSISTENT: "persistent: the file system",
}


def _estimates(values: Sequence[tuple[str, Estimate]], words: str, show: Show, mark: Show, axes: Axes) -> None:
    means = [value.mean for _, value in values]
    lengths = [[max(0.0, each.mean - each.least) for _, each in values]]
    lengths.append([max(0.0, each.most - each.mean) for _, each in values])
    bars(axes, means, "violet")
    axes.errorbar(means, range(len(means)), xerr=lengths, fmt="none", ecolor=light("ink"), elinewidth=1.4, capsize=3)
    rows(axes, [f"{label}: {show(value.mean)}" for label, value in values])
    linear_axis(axes, "x", 1.05 * max(value.most for _, value in values), mark, 4)
    axes.set_xlabel(f"{words} (line: least to most)")


def validation_chart(validation: Validation) -> Chart:
    """Predicted against measured, beside the line where they agree."""
    there = {each.what for each in validation.comparisons}
    key = [
        Mark(label, SERIES[number], shape)
        for number, (names, label, shape) in enumerate(_WHAT)
        if not there.isdisjoint(names)
    ]
    key += [Mark("both agree", "soft", "line"), Mark(f"{WORST_TARGET:.0%} off", "soft", "dotted")]
    panel = Panel("Predicted against measured", partial(_agreement, validation), 300)
    return Chart("validation", (panel,), tuple(key))


def _agreement(validation: Validation, axes: Axes) -> None:
    markers = {"point": "o", "square": "s", "triangle": "^"}
    for number, (names, _, shape) in enumerate(_WHAT):
        mine = [each for each in validation.comparisons if each.what in names]
        axes.plot(
            [each.measured_s for each in mine], [each.predicted_s for each in mine], markers[shape],
            color=light(SERIES[number]), ms=6, mec=light("card"), mew=0.6,
        )  # fmt: skip
    ends = [seconds for each in validation.comparisons for seconds in (each.measured_s, each.predicted_s)]
    line = [min(ends) / 1.5, 1.5 * max(ends)]
    axes.plot(line, line, color=light("soft"), lw=1)
    for factor in (1 - WORST_TARGET, 1 + WORST_TARGET):
        axes.plot(line, [factor * end for end in line], ":", color=light("soft"), lw=1.2)
    log_time_axis(axes, "x", ends, most=4)
    log_time_axis(axes, "y", ends)
    axes.set(xlabel="measured", ylabel="predicted")
