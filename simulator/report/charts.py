"""The charts of all results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model import REDUNDANT_LEVELS, Level, show_bytes, show_seconds, show_share

from ..advise.choose import Advice, Choice, as_good_as_least, describe, least_restart, loss_of, shown
from ..advise.compare import PARTS, REPLAY, Comparison, Side, least_restart_of
from ..budget.bill import USEFUL, Bill, Row, cells, show_hours
from ..campaign.outcomes import Estimate, Summary, show_number
from ..measure.validate import WORST_TARGET, Validation
from ..timing.scale import Point
from ..timing.stages import TORCH_SAVE, Job, torch_save_words
from .chart import (
    MARKERS,
    SERIES,
    SMALL,
    Chart,
    Mark,
    Panel,
    bars,
    light,
    linear_axis,
    log_axis,
    log_time_axis,
    rows,
    rows_height,
    show_count,
    show_part,
    show_times,
    time_axis,
)
from .tables import OF_ONE, not_all_zero, words_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Show = Callable[[float], str]


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def scaling_chart(points: Sequence[Point], job: Job) -> Chart:
    """Time against ranks: blocked, and until all stages are through; and the speed-up."""
    colours = dict(zip(dict.fromkeys(point.strategy for point in points), SERIES, strict=False))
    compressions = list(dict.fromkeys(point.compression for point in points))
    saved = torch_save_words(job.state.layout)
    names = {TORCH_SAVE: f"{TORCH_SAVE} ({saved})"}
    key = [Mark(names.get(strategy, strategy), colour) for strategy, colour in colours.items()]
    key += [Mark("training waits", "soft", "line"), Mark("all stages, one after the other", "soft", "dotted")]
    if len(compressions) > 1:
        key += [
            Mark("compressed" if name != "none" else "not compressed", "soft", shape)
            for name, shape in zip(compressions, ("point", "hollow"), strict=False)
        ]
    key.append(Mark("as many times as there are ranks", "soft", "dashed"))
    lines = partial(_lines, points, colours, compressions[0])
    panels = (
        Panel("Time of one checkpoint", partial(_times, lines, points)),
        Panel(f"Times as fast as {saved}", partial(_speedups, lines, points)),
    )
    return Chart("scaling", panels, tuple(key), f"{job.state.name} on {job.machine.name}")


def _times(lines: Callable[..., None], points: Sequence[Point], axes: Axes) -> None:
    lines(axes, ("blocked_s", "serial_s"))
    log_time_axis(axes, "y", [seconds for point in points for seconds in (point.blocked_s, point.serial_s)])


def _speedups(lines: Callable[..., None], points: Sequence[Point], axes: Axes) -> None:
    lines(axes, ("blocked_speedup", "serial_speedup"))
    ranks = sorted({float(point.ranks) for point in points})
    axes.plot(ranks, ranks, "--", color=light("soft"), lw=1.2)
    values = [value for point in points for value in (point.blocked_speedup, point.serial_speedup)]
    log_axis(axes, "y", [*values, *ranks], show_times)


def _lines(
    points: Sequence[Point], colours: Mapping[str, str], filled: str, axes: Axes, names: tuple[str, str]
) -> None:
    """A line for each strategy and compression, and each of two numbers."""
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.strategy, point.compression), []).append(point)
    for (strategy, compression), mine in series.items():
        colour = light(colours[strategy])
        face = colour if compression == filled else light("card")
        for name, style in zip(names, ("-", ":"), strict=True):
            axes.plot(
                [point.ranks for point in mine], [getattr(point, name) for point in mine], style, marker="o", ms=4,
                color=colour, markerfacecolor=face, lw=1.6,
            )  # fmt: skip
    log_axis(axes, "x", [float(point.ranks) for point in points], show_count, most=5)
    axes.set_xlabel("ranks")


#: What a validation compares: name, words and shape of each group of marks.
_WHAT = (
    (("blocked",), "blocked", "point"),
    ((Level.LOCAL,), "until local", "square"),
    (REDUNDANT_LEVELS, "until copied, or parity", "square"),
    ((Level.PERSISTENT,), "until persistent", "triangle"),
    (("restore",), "until restored", "point"),
    (("trained",), "training, with a checkpoint", "triangle"),
)


def validation_chart(validation: Validation) -> Chart:
    """Predicted against measured, beside the line where they agree."""
    there = {each.what for each in validation.comparisons}
    kinds = list(zip(_WHAT, SERIES, strict=False))
    key = [Mark(label, colour, shape) for (names, label, shape), colour in kinds if not there.isdisjoint(names)]
    key += [Mark("both agree", "soft", "line"), Mark(f"{WORST_TARGET:.0%} off", "soft", "dotted")]
    return Chart("validation", (Panel("Predicted against measured", partial(_agreement, validation), 300),), tuple(key))


def _agreement(validation: Validation, axes: Axes) -> None:
    for (names, _, shape), colour in zip(_WHAT, SERIES, strict=False):
        mine = [each for each in validation.comparisons if each.what in names]
        axes.plot(
            [each.measured_s for each in mine], [each.predicted_s for each in mine], MARKERS[shape],
            color=light(colour), ms=6, mec=light("card"), mew=0.6,
        )  # fmt: skip
    ends = [seconds for each in validation.comparisons for seconds in (each.measured_s, each.predicted_s)]
    line = [min(ends) / 1.5, 1.5 * max(ends)]
    axes.plot(line, line, color=light("soft"), lw=1)
    for factor in (1 - WORST_TARGET, 1 + WORST_TARGET):
        axes.plot(line, [factor * end for end in line], ":", color=light("soft"), lw=1.2)
    log_time_axis(axes, "x", ends, most=4)
    log_time_axis(axes, "y", ends)
    axes.set(xlabel="measured", ylabel="predicted")


def goodput_chart(found: Sequence[Row], days: float) -> Chart:
    """The share that is lost against the time that a call blocks; and node-hours of each way."""
    colours = dict(zip(dict.fromkeys(row.period_s for row in found), SERIES, strict=False))
    drawn = [row for row in found if row.period_s in colours]
    ways = list(dict.fromkeys(row.way for row in found if row.way))
    key = [Mark(f"every {show_seconds(period_s)}", colour, "line") for period_s, colour in colours.items()]
    key.append(Mark("what a way blocks for", "soft", "point"))
    panels = (
        Panel("Goodput that is lost", partial(_lost, drawn, colours)),
        Panel(f"Node-hours in {days:g} days", partial(_hours, drawn, colours, ways), rows_height(len(ways))),
    )
    return Chart("goodput", panels, tuple(key))


def _lost(drawn: Sequence[Row], colours: Mapping[float, str], axes: Axes) -> None:
    for period_s, colour in colours.items():
        mine = [row for row in drawn if row.period_s == period_s]
        axes.plot([row.blocked_s for row in mine], [row.lost for row in mine], color=light(colour), lw=1.6)
        ways = [row for row in mine if row.way]
        axes.plot([row.blocked_s for row in ways], [row.lost for row in ways], "o", ms=5, color=light(colour))
    log_time_axis(axes, "x", [row.blocked_s for row in drawn], most=5)
    log_axis(axes, "y", [row.lost for row in drawn], show_part)
    axes.set(xlabel="a call blocks for", ylabel="share of the time that is lost")


def _hours(drawn: Sequence[Row], colours: Mapping[float, str], ways: Sequence[str], axes: Axes) -> None:
    def words(way: str) -> str:
        hours = [row.cost.node_hours for row in drawn if row.way == way]
        least, most = show_hours(min(hours)), show_hours(max(hours))
        return f"{way}: {least}" if least == most else f"{way}: {least} to {most}"

    found = [
        [(row.cost.node_hours, ways.index(row.way)) for row in drawn if row.period_s == period_s and row.way]
        for period_s in colours
    ]
    every = _marks(axes, zip(found, colours.values(), ["point"] * len(found), strict=True))
    rows(axes, [words(way) for way in ways])
    log_axis(axes, "x", every, show_count, most=4)
    axes.set_xlabel("node-hours")


def _marks(axes: Axes, series: Iterable[tuple[Sequence[tuple[float, int]], str, str]]) -> list[float]:
    """Marks in rows, of some series with a colour and a shape each; returns all values."""
    every: list[float] = []
    for places, colour, shape in series:
        every += [value for value, _ in places]
        if places:
            axes.plot(*zip(*places, strict=True), MARKERS[shape], color=light(colour), ms=8)
    return every


# --- bars -------------------------------------------------------------------------------------------------------------


def _stacked(
    axes: Axes, parts: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], words: Callable[[str, float], str]
) -> float:
    """A row for each label, of stacked parts, with words at its end; returns where the longest ends."""
    ends = [0.0] * len(parts)
    for part, colour in colours.items():
        widths = [max(0.0, each.get(part, 0.0)) for each in parts.values()]
        bars(axes, widths, colour, ends)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, (label, end) in enumerate(zip(parts, ends, strict=True)):
        axes.annotate(
            words(label, end), (end, place), (5, 0), textcoords="offset points", va="center", fontsize=SMALL,
            color=light("soft"),
        )  # fmt: skip
    return max(ends, default=0.0)


def _colour_key(colours: Mapping[str, str]) -> tuple[Mark, ...]:
    return tuple(Mark(words_of(part), colour) for part, colour in colours.items())


def bill_chart(bill: Bill, name: str) -> Chart | None:
    """The lines of a bill that were not useful, by node-hours; None where there are none."""
    found = [each for each in bill.items if each.what != USEFUL and each.node_hours]
    labels = [f"{each.what}: {cells(each, bill.currency)[:2][-1]}" for each in found]
    draw = partial(_bill, labels, [each.node_hours for each in found])
    panel = Panel("Node-hours that were not useful training", draw, rows_height(len(found)))
    return Chart(name, (panel,)) if found else None


def _bill(labels: Sequence[str], hours: Sequence[float], axes: Axes) -> None:
    bars(axes, hours, "violet")
    rows(axes, labels)
    linear_axis(axes, "x", 1.05 * max(hours), show_count, 4)
    axes.set_xlabel("node-hours")


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
_FROM = {
    "none": "nothing: from the beginning",
    Level.PARTNER: "partner: copies on other nodes",
    Level.PARITY: "parity: rebuilt from the group",
    Level.LOCAL: "local: the nodes' own storage",
    Level.PERSISTENT: "persistent: the file system",
}


def campaign_chart(summary: Summary) -> Chart:
    """How the time is spent that is not useful training, and the levels from which the job was restored."""
    shares = [(words, summary.shares[name]) for name, words in _SHARES if summary.shares[name].most > 0]
    levels = [(_FROM.get(name, name), value) for name, value in summary.recoveries.items()]
    title = f"Not useful training: {show_share(1 - summary.efficiency.mean)} of the time"
    panels = [
        Panel(title, partial(_estimates, shares, "share of the time", show_share, show_part), rows_height(len(shares))),
        Panel(
            "Came back from",
            partial(_estimates, levels, "times in a run", show_number, show_count),
            rows_height(len(levels)),
        ),
    ]
    return Chart("campaign", tuple(panel for panel, there in zip(panels, (shares, levels), strict=True) if there))


def _estimates(values: Sequence[tuple[str, Estimate]], words: str, show: Show, mark: Show, axes: Axes) -> None:
    means = [value.mean for _, value in values]
    lengths = [[max(0.0, each.mean - each.least) for _, each in values]]
    lengths.append([max(0.0, each.most - each.mean) for _, each in values])
    bars(axes, means, "violet")
    axes.errorbar(means, range(len(means)), xerr=lengths, fmt="none", ecolor=light("ink"), elinewidth=1.4, capsize=3)
    rows(axes, [f"{label}: {show(value.mean)}" for label, value in values])
    linear_axis(axes, "x", 1.05 * max(value.most for _, value in values), mark, 4)
    axes.set_xlabel(f"{words} (line: least to most)")


#: Of parts of a comeback, in their order; hardly a machine has more than the series have colours.
_PIECE_COLOURS = (*SERIES, "soft", "ink", "line")
_LOST = {"process": "a process", "node": "a node", "group": "a group of nodes", "system": "everything"}


def after_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """For each class of failures, each way's time until training goes on, by piece, and the replay behind it."""
    kinds = list(dict.fromkeys(kind for each in found for kind in each.after))
    parts = {
        kind: {each.way: {**each.after[kind].pieces, REPLAY: each.after[kind].replay_s} for each in found}
        for kind in kinds
    }
    every = [of_way for of_kind in parts.values() for of_way in of_kind.values()]
    colours = dict(zip(not_all_zero((*OF_ONE, REPLAY), every), _PIECE_COLOURS, strict=False))
    panels = [
        Panel(
            f"After the loss of {_LOST.get(kind, f'a group of nodes ({kind})')}",
            partial(_ways, of_kind, colours, mode, show_seconds),
            rows_height(len(found)),
        )
        for kind, of_kind in parts.items()
    ]
    return Chart("after", tuple(panels), _colour_key(colours))


def share_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """The share of the time that each way loses, by part."""
    parts = {each.way: each.shares for each in found}
    colours = dict(zip(not_all_zero(PARTS, parts.values()), _PIECE_COLOURS, strict=False))
    draw = partial(_ways, parts, colours, mode, show_share)
    panel = Panel("Share of the time that is lost", draw, rows_height(len(found)))
    return Chart("shares", (panel,), _colour_key(colours))


def _ways(
    parts: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], mode: str, show: Show, axes: Axes
) -> None:
    end = _stacked(axes, parts, colours, lambda _, end: show(end))
    rows(axes, list(parts), marked=list(parts).index(mode))
    if show is show_seconds:
        time_axis(axes, "x", 1.4 * end, 4)
    else:
        linear_axis(axes, "x", 1.4 * end, show_part, 4)
        axes.set_xlabel("share of the time")


# --- advice -----------------------------------------------------------------------------------------------------------

#: Parts of what a choice loses, in words, and their colours.
_LOSSES = {"writing": "violet", "doing again": "pink", "coming back slower": "brown"}
#: Of the plot of the front, about, to keep numbers apart: pixels, and of a number's box.
_PLOT, _BOX = (275.0, 225.0), (17.0, 13.0)
_AROUND = ((0, 1), (1, 0), (-1, 0), (0, -1), (0.9, 0.9), (-0.9, 0.9), (0.9, -0.9), (-0.9, -0.9))


def advice_chart(advice: Advice) -> Chart:
    """What the choices of the front lose, by cause, and the front itself; without the time to come back of all."""
    choices = shown(advice)
    key = (
        *_colour_key(_LOSSES),
        Mark("a choice; numbers as in the list", "violet", "point"),
        Mark("worse in both, but easier on drives or simpler", "violet", "hollow"),
        Mark("advised", "pink", "ring"),
        Mark("below: as good as the least", "soft", "dashed"),
    )
    labels = {f"{number}  {describe(choice.job)}": choice for number, choice in enumerate(choices, 1)}
    draw = partial(_losses, labels, least_restart(advice.front), advice.chosen)
    panels = (
        Panel("What each choice loses, and time between calls", draw, rows_height(len(choices))),
        Panel("Loss against bytes a day to the file system", partial(_front, advice, choices), 320),
    )
    return Chart("advice", panels, key)


def _losses(labels: Mapping[str, Choice | None], least: float, chosen: Choice | None, axes: Axes) -> None:
    """What choices lose; nothing where nothing fails."""
    wastes = {label: None if choice is None else choice.waste for label, choice in labels.items()}
    parts = {
        label: {} if waste is None
        else dict(zip(_LOSSES, (waste.cost, waste.rework, waste.restart - least), strict=True))
        for label, waste in wastes.items()
    }  # fmt: skip

    def words(label: str, end: float) -> str:
        choice = labels[label]
        if choice is None:
            return "nothing fails there"
        return ("advised, " if choice is chosen else "") + f"every {show_seconds(choice.cadence.period_s)}"

    end = _stacked(axes, parts, _LOSSES, words)
    linear_axis(axes, "x", 2.1 * end, show_part, 4)
    marked = next((place for place, choice in enumerate(labels.values()) if choice is chosen is not None), None)
    rows(axes, list(labels), marked=marked)
    axes.set_xlabel("share of the time that is lost")


def _front(advice: Advice, choices: Sequence[Choice], axes: Axes) -> None:
    least = least_restart(advice.front)
    places = [(max(1.0, choice.drained_daily_bytes), loss_of(choice, least)) for choice in advice.front]
    line = _staircase(places)
    if len(line) > 1:
        axes.step(*zip(*line, strict=True), where="post", color=light("violet"), lw=1.2)
    for is_on, face in ((False, light("card")), (True, light("violet"))):
        mine = [place for place in places if (place in line) is is_on]
        if mine:
            axes.plot(*zip(*mine, strict=True), "o", ms=5.5, color=light("violet"), markerfacecolor=face)
    ringed = next(number for number, choice in enumerate(advice.front) if choice is advice.chosen)
    axes.plot(*places[ringed], "o", ms=13, color=light("pink"), markerfacecolor="none", mew=2.2)
    good = as_good_as_least(advice.front)
    axes.axhline(good, ls="--", color=light("soft"), lw=1.2)
    log_axis(axes, "x", [nbytes for nbytes, _ in places], show_bytes, most=4, margin=0.1)
    log_axis(axes, "y", [*(loss for _, loss in places), good], show_part, margin=0.1)
    numbers = {id(choice): number for number, choice in enumerate(choices, 1)}
    _number(axes, places, [numbers.get(id(choice), 0) for choice in advice.front], ringed)
    axes.set(xlabel="bytes a day to the file system", ylabel="share of the time that is lost")


def _staircase(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (bytes, loss) those that no other one is below in both, fewest bytes first."""
    found: list[tuple[float, float]] = []
    for place in sorted(places):
        if not found or place[1] < found[-1][1]:
            found.append(place)
    return found


def _number(axes: Axes, places: Sequence[tuple[float, float]], numbers: Sequence[int], ringed: int) -> None:
    """The numbers of choices beside their points, where nothing else is; without those that find no room."""
    to_axes = axes.transData + axes.transAxes.inverted()
    spots = [(float(x) * _PLOT[0], float(y) * _PLOT[1]) for x, y in (to_axes.transform(place) for place in places)]
    taken = [(x, y, 9.0, 9.0) for x, y in spots]
    taken.append((*spots[ringed], 16.0, 16.0))
    for place, (x, y) in enumerate(spots):
        apart = 17.0 if place == ringed else 13.0
        for right, up in _AROUND if numbers[place] else ():
            at = (x + apart * right, y + apart * up, *_BOX)
            inside = all(box / 2 < here < plot - box / 2 for here, box, plot in zip(at, _BOX, _PLOT, strict=False))
            if inside and not any(_meet(at, other) for other in taken):
                taken.append(at)
                axes.annotate(
                    str(numbers[place]), places[place], (apart * right, apart * up), textcoords="offset points",
                    ha="center", va="center", fontsize=SMALL, color=light("ink"),
                    fontweight="bold" if place == ringed else "normal",
                )  # fmt: skip
                break


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (x and y of the middle, width, height) meet."""
    return abs(one[0] - other[0]) < (one[2] + other[2]) / 2 and abs(one[1] - other[1]) < (one[3] + other[3]) / 2


#: What is shown of a checkpoint: (level, or nothing for the call), in words, colour, shape.
_UNTIL = (
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
    """Times of a checkpoint; and where anything fails, what is lost and what is written: all sides on common scales."""
    labels = [side.label for side in sides]

    def seconds(level: str, side: Side) -> float:
        return side.complete_s.get(level, 0.0) if level else side.blocked_s

    def nbytes(name: str, side: Side) -> float:
        return getattr(side.choice, name) if side.choice else 0.0

    def chart(name: str, title: str, kinds: Sequence[tuple[str, str, str, str]], of: Callable[[str, Side], float],
              axis: Callable[[Axes, list[float]], None]) -> Chart:  # fmt: skip
        found = [[(of(kind, side), row) for row, side in enumerate(sides) if of(kind, side)] for kind, *_ in kinds]
        series = [(places, colour, shape) for places, (_, _, colour, shape) in zip(found, kinds, strict=True)]
        key = [Mark(words, *how) for places, (_, words, *how) in zip(found, kinds, strict=True) if places]

        def draw(axes: Axes) -> None:
            axis(axes, _marks(axes, series))
            rows(axes, labels)

        return Chart(name, (Panel(title, draw, rows_height(len(sides))),), tuple(key), "Comparison")

    def time(axes: Axes, values: list[float]) -> None:
        log_time_axis(axes, "x", values, most=5)
        axes.set_xlabel("from the call on")

    def written(axes: Axes, values: list[float]) -> None:
        log_axis(axes, "x", values, show_bytes, most=4)
        axes.set_xlabel("bytes a day")

    charts = [chart("times", "Time of one checkpoint", _UNTIL, seconds, time)]
    if any(side.choice is not None for side in sides):
        draw = partial(_losses, {side.label: side.choice for side in sides}, least_restart_of(sides), None)
        panel = Panel("What is lost as advised, and time between calls", draw, rows_height(len(sides)))
        charts.append(Chart("losses", (panel,), _colour_key(_LOSSES)))
        charts.append(chart("written", "Bytes a day as advised", _BYTES, nbytes, written))
    return charts


def together(charts: Sequence[Chart]) -> Chart:
    """All of them as one picture."""
    marks = dict.fromkeys(mark for chart in charts for mark in chart.key)
    return Chart("comparison", tuple(panel for chart in charts for panel in chart.panels), tuple(marks), "Comparison")
