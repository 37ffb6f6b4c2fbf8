"""The charts of all results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model import Level, show_bytes, show_seconds, show_share

from ..advise.choose import Advice, Choice, as_good_as_least, describe, least_restart, loss_of, shown
from ..advise.comebacks import PARTS, PIECES_OF_ONE, REPLAY, Comparison
from ..budget import SHARE_WORDS, USEFUL, Row
from ..campaign.costs import NOTHING
from ..campaign.outcomes import Estimate, Summary, show_number
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
from .timeline import COLOURS, LANES, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Show = Callable[[float], str]


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def scaling_chart(points: Sequence[Point], job: Job) -> Chart:
    """Time against ranks: blocked, and until all stages are through; and the speed-up."""
    colours = dict(zip(dict.fromkeys(point.strategy for point in points), SERIES, strict=False))
    saved = torch_save_words(job.state.layout)
    names = {TORCH_SAVE: f"{TORCH_SAVE} ({saved})"}
    key = [Mark(names.get(strategy, strategy), colour) for strategy, colour in colours.items()]
    key += [Mark("training waits", "soft", "line"), Mark("all stages, one after the other", "soft", "dotted")]
    key.append(Mark("as many times as there are ranks", "soft", "dashed"))
    panels = (
        Panel("Time of one checkpoint", partial(_times, points, colours)),
        Panel(f"Times as fast as {saved}", partial(_speedups, points, colours)),
    )
    return Chart("scaling", panels, tuple(key), f"{job.state.name} on {job.machine.name}")


def _times(points: Sequence[Point], colours: Mapping[str, str], axes: Axes) -> None:
    values = _lines(points, colours, axes, ("blocked_s", "serial_s"))
    log_time_axis(axes, "y", values)


def _speedups(points: Sequence[Point], colours: Mapping[str, str], axes: Axes) -> None:
    values = _lines(points, colours, axes, ("blocked_speedup", "serial_speedup"))
    ranks = sorted({float(point.ranks) for point in points})
    axes.plot(ranks, ranks, "--", color=light("soft"), lw=1.2)
    log_axis(axes, "y", [*values, *ranks], show_times)


def _lines(points: Sequence[Point], colours: Mapping[str, str], axes: Axes, names: tuple[str, str]) -> Sequence[float]:
    """A line for each strategy, and each of two numbers; returns all values."""
    for strategy, colour in colours.items():
        mine = [point for point in points if point.strategy == strategy]
        for name, style in zip(names, ("-", ":"), strict=True):
            values = [getattr(point, name) for point in mine]
            axes.plot([point.ranks for point in mine], values, style, marker="o", ms=4, color=light(colour), lw=1.6)
    log_axis(axes, "x", [float(point.ranks) for point in points], show_count, most=5)
    axes.set_xlabel("ranks")
    return [getattr(point, name) for point in points for name in names]


def timeline_chart(groups: Sequence[Group]) -> Chart:
    """What nodes do from the call on, all on the same scale; of two at a time in a lane, the second is narrower."""
    every = [bar for group in groups for bar in group.bars]
    end_s = max((bar.end_s for bar in every), default=1.0)
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in every)]
    key = dict.fromkeys(
        Mark(words, colour) for what, (colour, words) in COLOURS.items() if what in {b.what for b in every}
    )
    panels = [Panel(group.words, partial(_timeline, group, lanes, end_s), rows_height(len(lanes))) for group in groups]
    return Chart("timeline", tuple(panels), tuple(key))


def _timeline(group: Group, lanes: Sequence[str], end_s: float, axes: Axes) -> None:
    for number, bar in enumerate(group.bars):
        beside = any(one.lane == bar.lane and one.begin_s <= bar.begin_s < one.end_s for one in group.bars[:number])
        height = 0.5 if beside or bar.what == "train" else 1.0
        place = [lanes.index(bar.lane)]
        bars(axes, [bar.end_s - bar.begin_s], COLOURS[bar.what][0], [bar.begin_s], place, height)
    rows(axes, lanes)
    time_axis(axes, "x", end_s, 4)
    axes.set_xlabel("from the call on")


def goodput_chart(found: Sequence[Row]) -> Chart:
    """The share that is lost against the time that a call blocks, and where each way is."""
    colours = dict(zip(dict.fromkeys(row.period_s for row in found), SERIES, strict=False))
    key = [Mark(f"every {show_seconds(period_s)}", colour, "line") for period_s, colour in colours.items()]
    key.append(Mark("what a way blocks for", "soft", "point"))
    return Chart("goodput", (Panel("Goodput that is lost", partial(_lost, found, colours)),), tuple(key))


def _lost(found: Sequence[Row], colours: Mapping[float, str], axes: Axes) -> None:
    drawn = [row for row in found if row.period_s in colours]
    for period_s, colour in colours.items():
        mine = [row for row in drawn if row.period_s == period_s]
        axes.plot([row.blocked_s for row in mine], [row.lost for row in mine], color=light(colour), lw=1.6)
        ways = [row for row in mine if row.way]
        axes.plot([row.blocked_s for row in ways], [row.lost for row in ways], "o", ms=5, color=light(colour))
    log_time_axis(axes, "x", [row.blocked_s for row in drawn], most=5)
    log_axis(axes, "y", [row.lost for row in drawn], show_part)
    axes.set(xlabel="a call blocks for", ylabel="share of the time that is lost")


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
    return tuple(Mark(part.replace("_", " "), colour) for part, colour in colours.items())


def campaign_chart(summary: Summary) -> Chart:
    """How the time is spent that is not useful training, and the levels from which the job was restored."""
    shares = [
        (words, summary.shares[name])
        for name, words in SHARE_WORDS.items()
        if words != USEFUL and summary.shares[name].most > 0
    ]
    levels = list(summary.recoveries.items())
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
    # Rounding may leave a mean beside its values, and matplotlib refuses lines of a length below 0.
    lengths = [[max(0.0, each.mean - each.least) for _, each in values]]
    lengths.append([max(0.0, each.most - each.mean) for _, each in values])
    bars(axes, means, "violet")
    axes.errorbar(means, range(len(means)), xerr=lengths, fmt="none", ecolor=light("ink"), elinewidth=1.4, capsize=3)
    rows(axes, [f"{'nothing' if label == NOTHING else label}: {show(value.mean)}" for label, value in values])
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
    colours = _colours_of((*PIECES_OF_ONE, REPLAY), every)
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
    colours = _colours_of(PARTS, list(parts.values()))
    draw = partial(_ways, parts, colours, mode, show_share)
    panel = Panel("Share of the time that is lost", draw, rows_height(len(found)))
    return Chart("shares", (panel,), _colour_key(colours))


def _colours_of(names: Sequence[str], values: Sequence[Mapping[str, float]]) -> dict[str, str]:
    there = [name for name in names if any(each.get(name) for each in values)]
    return dict(zip(there, _PIECE_COLOURS, strict=False))


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


def advice_chart(advice: Advice) -> Chart:
    """What the choices of the front lose, by cause, and the front itself; without the time to come back of all."""
    choices = shown(advice)
    key = (
        *_colour_key(_LOSSES),
        Mark("a choice", "violet", "point"),
        Mark("worse in both, but easier on drives or simpler", "violet", "hollow"),
        Mark("advised", "pink", "ring"),
        Mark("below: as good as the least", "soft", "dashed"),
    )
    labels = {f"{number}  {describe(choice.job)}": choice for number, choice in enumerate(choices, 1)}
    panels = (
        _losses_panel("What each choice loses, and time between calls", labels, least_restart(advice.front), 0),
        Panel("Loss against bytes a day to the file system", partial(_front, advice), 320),
    )
    return Chart("advice", panels, key)


def _losses_panel(title: str, labels: Mapping[str, Choice], least: float, marked: int | None) -> Panel:
    wastes = {label: choice.waste for label, choice in labels.items()}
    parts = {
        label: dict(zip(_LOSSES, (waste.cost, waste.rework, waste.restart - least), strict=True))
        for label, waste in wastes.items()
    }

    def draw(axes: Axes) -> None:
        end = _stacked(axes, parts, _LOSSES, lambda label, _: f"every {show_seconds(labels[label].cadence.period_s)}")
        linear_axis(axes, "x", 2.1 * end, show_part, 4)
        rows(axes, list(labels), marked=marked)
        axes.set_xlabel("share of the time that is lost")

    return Panel(title, draw, rows_height(len(labels)))


def _front(advice: Advice, axes: Axes) -> None:
    least = least_restart(advice.front)
    places = [(max(1.0, choice.drained_daily_bytes), loss_of(choice, least)) for choice in advice.front]
    line: list[tuple[float, float]] = []  # of those that no other one is below in both, fewest bytes first
    for place in sorted(places):
        if not line or place[1] < line[-1][1]:
            line.append(place)
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
    axes.set(xlabel="bytes a day to the file system", ylabel="share of the time that is lost")


#: What is shown of a checkpoint: (level, or nothing for the call), in words, colour, shape.
_UNTIL = (
    ("", "training waits", "pink", "point"),
    (Level.LOCAL, "until local", "violet", "square"),
    (Level.PARTNER, "until partner", "teal", "square"),
    (Level.PARITY, "until parity", "olive", "square"),
    (Level.PERSISTENT, "until persistent", "brown", "triangle"),
)


def jobs_chart(found: Mapping[str, Choice]) -> Chart:
    """What is advised for some jobs, on common scales: the times of a checkpoint, and what is lost."""
    times = {label: {"": choice.blocked_s, **choice.complete_s} for label, choice in found.items()}
    there = [each for each in _UNTIL if any(each[0] in of_job for of_job in times.values())]

    def draw(axes: Axes) -> None:
        for level, _, colour, shape in there:
            places = [(of_job[level], row) for row, of_job in enumerate(times.values()) if level in of_job]
            axes.plot(*zip(*places, strict=True), MARKERS[shape], color=light(colour), ms=8)
        rows(axes, list(found))
        log_time_axis(axes, "x", [seconds for of_job in times.values() for seconds in of_job.values()], most=5)
        axes.set_xlabel("from the call on")

    key = [Mark(words, colour, shape) for _, words, colour, shape in there]
    least = min(choice.waste.restart for choice in found.values())
    panels = (
        Panel("Time of one checkpoint", draw, rows_height(len(found))),
        _losses_panel("What is lost as advised, and time between calls", found, least, None),
    )
    return Chart("jobs", panels, (*key, *_colour_key(_LOSSES)), "Comparison")
