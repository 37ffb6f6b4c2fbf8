"""The charts of all results: panels side by side with one legend below.

Any two of the first seven colours can be distinguished with normal sight and with each of the three kinds of colour
blindness: they are at least 15 apart by CIEDE2000, with colour blindness computed after G. M. Machado et al., "A
Physiologically-based Model for Simulation of Color Vision Deficiency" (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deeppart.model import Level, show_seconds, show_share

from ..advise.choose import Advice, Choice, describe, least_restart, shown
from ..advise.comebacks import PARTS, PIECES_OF_ONE, REPLAY, Comparison
from ..budget import SHARE_WORDS, USEFUL
from ..campaign.costs import NOTHING
from ..campaign.outcomes import Estimate, Summary, show_number
from ..machine.record import DAY_S
from ..timing.scale import Point
from ..timing.stages import TORCH_SAVE, Job, Times, by_node, torch_save_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Show = Callable[[float], str]
_VIOLET, _PINK, _TEAL, _BROWN, _OLIVE, _GREEN, _PURPLE = _SERIES = (
    "#8066e6", "#e63380", "#339999", "#801a00", "#808000", "#1a664c", "#661a99",
)  # fmt: skip
_INK, _SOFT, _LINE = "#1d2127", "#5a626d", "#d9dde3"
_STYLE: Any = {
    "axes.axisbelow": True, "axes.edgecolor": _SOFT, "axes.grid": True, "axes.labelcolor": _SOFT,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlesize": 11.0, "font.size": 11.0,
    "grid.color": _LINE, "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "deeppart",
    "text.parse_math": False, "xtick.color": _SOFT, "ytick.color": _SOFT,
}  # fmt: skip
#: In inches: width of a panel, height of a row with its label, height of a line of the legend. Then the number of
#: characters from which an entry of the legend needs half a panel or more.
_WIDTH, _ROW, _KEY, _LONG = 5.2, 0.5, 0.27, 22


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing."""

    title: str
    draw: Callable[[Axes], None]
    height: float = 4.0  # in inches


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels that belong together."""

    panels: tuple[Panel, ...]
    heading: str = ""  # above the panels

    def svg(self) -> str:
        """Return the chart as SVG. The same chart gives the same bytes."""
        text = StringIO()
        self._save(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def save(self, path: Path) -> None:
        """Write the chart to an image file."""
        self._save(path, dpi=140)

    def _save(self, file: StringIO | Path, **how: Any) -> None:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        columns = min(2, max(1, len(self.panels)))
        lines = -(-len(self.panels) // columns)
        with rc_context(_STYLE):
            figure, marks = Figure(layout="constrained"), dict[str, Any]()
            for number, panel in enumerate(self.panels, 1):
                axes = figure.add_subplot(lines, columns, number)
                panel.draw(axes)
                axes.set_title(panel.title)
                handles, labels = axes.get_legend_handles_labels()
                marks |= dict(zip(labels, handles, strict=True))
            in_line = columns * (2 if max(map(len, marks), default=0) < _LONG else 1)
            height = lines * max((panel.height for panel in self.panels), default=1.0)
            figure.set_size_inches(_WIDTH * columns, height - _KEY * (-len(marks) // in_line))
            figure.suptitle(self.heading)
            if marks:
                figure.legend(list(marks.values()), list(marks), loc="outside lower center", ncols=in_line)
            figure.savefig(file, **how)


# --- axes -------------------------------------------------------------------------------------------------------------


#: Possible ticks of a logarithmic axis: round numbers, and round times in seconds.
_TENS = [10.0**digits for digits in range(-12, 25)]
_TIMES_S = [
    *(mark for mark in _TENS if mark <= 10),
    60.0,
    600.0,
    3600.0,
    36000.0,
    *(DAY_S * mark for mark in _TENS[12:]),
]
#: Units of a linear axis of times.
_UNITS = ((DAY_S, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_MOST_TICKS, _MOST_LETTERS = 6, 60
#: Values may exceed the ticks of a logarithmic axis at either end by this factor.
_BEYOND = 1.1


def _log_axis(axes: Axes, which: str, values: Iterable[float], show: Show, marks: Sequence[float] = _TENS) -> None:
    """A logarithmic axis for values above 0, from one tick to another."""
    found = [value for value in values if value > 0] or [1.0]
    low, high = min(found) / _BEYOND, max(found) * _BEYOND
    first = max(0, sum(mark <= low * _BEYOND**2 for mark in marks) - 1)
    last = min(len(marks) - 1, max(first + 1, sum(mark < high / _BEYOND**2 for mark in marks)))
    limits = min(low, marks[first]), max(high, marks[last])
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    ticks = marks[first : last + 1 : 1 + (last - first) // _MOST_TICKS]
    axes.minorticks_off()
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(ticks, labels=[show(mark) for mark in ticks])


def _linear_axis(axes: Axes, high: float, show: Show, label: str) -> None:
    """A linear horizontal axis that begins at 0."""
    axes.set(xlim=(0, high or 1.0), xlabel=label)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda value, _: show(value))


def _time_axis(axes: Axes, end_s: float) -> None:
    """A linear horizontal axis of times that begins at 0, in one unit."""
    from matplotlib.ticker import MaxNLocator

    factor, unit = next((each for each in _UNITS if end_s >= 2 * each[0]), _UNITS[-1])
    ticks = [factor * mark for mark in MaxNLocator(4).tick_values(0.0, end_s / factor)]
    axes.xaxis.set_ticks(ticks, labels=[f"{mark / factor:.6g} {unit}" if mark else "0" for mark in ticks])
    axes.set_xlim(0, end_s or 1.0)


def _show_count(value: float) -> str:
    return f"{value:,.6g}" if value < 1e6 else f"{value / 1e6:,.6g} M"


def _show_part(share: float) -> str:
    return f"{100 * share:.6g} %"


def _rows(axes: Axes, labels: Sequence[str], marked: int | None = None) -> None:
    """Rows from top to bottom, each with its label above it, where long labels fit."""
    axes.set_ylim(len(labels) - 0.6, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if marked is not None:
        axes.axhspan(marked - 0.72, marked + 0.28, color=_LINE, lw=0, zorder=0)
    for place, label in enumerate(labels):
        text = label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 3]}..."
        axes.text(0.0, place - 0.24, text, transform=axes.get_yaxis_transform(), va="bottom", in_layout=False)


def _height(count: int) -> float:
    """Height in inches of a panel with ``count`` rows."""
    return _ROW * count + 1.0


def _bars(
    axes: Axes, widths: Sequence[float], colour: str, left: Sequence[float] | float = 0.0, part: str = ""
) -> None:
    """A bar in each row, below its label."""
    axes.barh(range(len(widths)), widths, height=0.36, left=left, color=colour, label=part.replace("_", " "))


def _stacked(
    axes: Axes, of_rows: Mapping[str, Mapping[str, float]], parts: Sequence[str], words: Callable[[str, float], str]
) -> float:
    """A row of stacked parts for each label, with text at its end. Returns the end of the longest row."""
    ends = [0.0] * len(of_rows)
    for part, colour in zip(parts, (*_SERIES, _SOFT, _INK, _LINE), strict=False):
        widths = [max(0.0, each.get(part, 0.0)) for each in of_rows.values()]
        _bars(axes, widths, colour, ends, part)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, (label, end) in enumerate(zip(of_rows, ends, strict=True)):
        axes.annotate(words(label, end), (end, place), (5, 0), textcoords="offset points", va="center", color=_SOFT)
    return max(ends, default=0.0)


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def scaling_chart(points: Sequence[Point], job: Job) -> Chart:
    """Times (blocked, and of all stages) and speed-up over the number of ranks."""
    saved, ranks = torch_save_words(job.state.layout), sorted({float(point.ranks) for point in points})

    def lines(axes: Axes, names: tuple[str, str]) -> list[float]:
        for strategy, colour in zip(dict.fromkeys(point.strategy for point in points), _SERIES, strict=False):
            mine = [point for point in points if point.strategy == strategy]
            words = f"{TORCH_SAVE} ({saved})" if strategy == TORCH_SAVE else strategy
            for name, style, what in zip(names, ("o-", "o:"), ("training waits", "all stages in turn"), strict=True):
                values = [getattr(point, name) for point in mine]
                axes.plot([point.ranks for point in mine], values, style, color=colour, label=f"{words}: {what}")
        _log_axis(axes, "x", ranks, _show_count)
        axes.set_xlabel("ranks")
        return [getattr(point, name) for point in points for name in names]

    def times(axes: Axes) -> None:
        _log_axis(axes, "y", lines(axes, ("blocked_s", "serial_s")), show_seconds, _TIMES_S)

    def speedups(axes: Axes) -> None:
        values = lines(axes, ("blocked_speedup", "serial_speedup"))
        axes.plot(ranks, ranks, "--", color=_SOFT, label="as many times as there are ranks")
        _log_axis(axes, "y", [*values, *ranks], lambda value: f"{_show_count(value)}x")

    panels = (Panel("Time of one checkpoint", times), Panel(f"Times as fast as {saved}", speedups))
    return Chart(panels, f"{job.state.name} on {job.machine.name}")


#: Rows of the timeline, from top to bottom: activities that overlap on a node.
_LANES = ("training", "store", "protect", "flush")


def timeline_chart(job: Job, times: Times) -> Chart:
    """The timeline of the node that is done last, with the times of its slowest rank."""
    ends_s = by_node(times.capture + np.maximum(times.stored, times.flushed), job.ranks_per_node).max(axis=1)
    node = int(np.argmax(ends_s))
    ranks = slice(node * job.ranks_per_node, (node + 1) * job.ranks_per_node)
    copying, encoding, stored, flushed = (
        float(each[ranks].max()) for each in (times.capture, times.encode, times.stored, times.flushed)
    )
    done = times.complete()
    copies_from = times.blocked_s if times.lazy else times.plan
    captured = copies_from + float(times.capture.max())
    begin = copies_from + copying
    shared_s = captured + times.limited if times.limited else 0.0  # the job's limit for everything that leaves a node
    train_until = max(done.values(), default=captured)
    bars = [
        ("training", "plan, copy", _PINK, 0.0, times.plan),
        ("store" if times.lazy else "training", "plan, copy", _PINK, copies_from, begin),
        ("training", "training goes on", _GREEN, times.blocked_s, train_until),
    ]
    bars += [("store", "encode", _PURPLE, begin, begin + encoding)] if encoding else []
    bars += [("store", "write", _VIOLET, begin, begin + stored)] if times.local.any() else []
    ready, last = done.get(Level.LOCAL, captured), Level.PARITY if times.parity.any() else Level.PARTNER
    for level, what, colour, took in (
        (Level.PARTNER, "exchange copies", _TEAL, times.partner),
        (Level.PARITY, "exchange parity", _OLIVE, times.parity),
    ):  # fmt: skip
        if took[node]:
            end_s = max(ready + float(took[node]), shared_s if level == last else 0.0)
            bars.append(("protect", what, colour, ready, end_s))
            ready += float(took.max())
    bars += [("flush", "flush", _BROWN, begin, max(begin + flushed, shared_s))] if times.persistent.any() else []
    lanes = [lane for lane in _LANES if any(bar[0] == lane for bar in bars)]

    def draw(axes: Axes) -> None:
        for lane, what, colour, begin_s, end_s in bars:
            height = 0.18 if what in ("write", "training goes on") else 0.36  # narrower where bars overlap
            axes.barh(lanes.index(lane), end_s - begin_s, height, begin_s, color=colour, label=what)
        _rows(axes, lanes)
        _time_axis(axes, max(bar[-1] for bar in bars))
        axes.set_xlabel("from the call on")

    title = "the node" if job.nodes == 1 else f"node {node:,}, which is done last"
    return Chart((Panel(title, draw, _height(len(lanes))),))


# --- campaigns and ways to restart ------------------------------------------------------------------------------------


def campaign_chart(summary: Summary) -> Chart:
    """How the time outside of useful training is spent, and the levels from which the job was restored."""
    shares = {
        words: summary.shares[name]
        for name, words in SHARE_WORDS.items()
        if words != USEFUL and summary.shares[name].most > 0
    }
    levels = {"nothing" if level == NOTHING else level: value for level, value in summary.recoveries.items()}
    title = f"Not useful training: {show_share(1 - summary.efficiency.mean)} of the time"
    panels = [
        Panel(title, partial(_estimates, shares, "share of the time", show_share, _show_part), _height(len(shares))),
        Panel("Came back from", partial(_estimates, levels, "times", show_number, _show_count), _height(len(levels))),
    ]
    return Chart(tuple(panel for panel, there in zip(panels, (shares, levels), strict=True) if there))


def _estimates(values: Mapping[str, Estimate], words: str, show: Show, mark: Show, axes: Axes) -> None:
    means = [value.mean for value in values.values()]
    # Rounding may put a mean outside of its values, and matplotlib refuses negative lengths.
    below = [max(0.0, each.mean - each.least) for each in values.values()]
    above = [max(0.0, each.most - each.mean) for each in values.values()]
    _bars(axes, means, _VIOLET)
    axes.errorbar(means, range(len(means)), xerr=[below, above], fmt="none", ecolor=_INK, capsize=3)
    _rows(axes, [f"{label}: {show(value.mean)}" for label, value in values.items()])
    _linear_axis(axes, 1.05 * max(value.most for value in values.values()), mark, f"{words} (line: least to most)")


_LOST = {"process": "a process", "node": "a node", "system": "everything"}


def after_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """For each failure class, the time of each way until training continues, by piece, followed by the replay."""
    kinds = dict.fromkeys(kind for each in found for kind in each.after)
    of_kinds = {
        kind: {each.way: {**each.after[kind].pieces, REPLAY: each.after[kind].replay_s} for each in found}
        for kind in kinds
    }
    every = [of_way for of_kind in of_kinds.values() for of_way in of_kind.values()]
    parts = [part for part in (*PIECES_OF_ONE, REPLAY) if any(each.get(part) for each in every)]

    def draw(of_kind: Mapping[str, Mapping[str, float]], axes: Axes) -> None:
        _time_axis(axes, 1.4 * _stacked(axes, of_kind, parts, lambda _, end: show_seconds(end)))
        _rows(axes, list(of_kind), marked=list(of_kind).index(mode))

    panels = [
        Panel(
            f"After the loss of {_LOST.get(kind, f'a group of nodes ({kind})')}",
            partial(draw, of_kind),
            _height(len(of_kind)),
        )
        for kind, of_kind in of_kinds.items()
    ]
    return Chart(tuple(panels))


def share_chart(found: Sequence[Comparison], mode: str) -> Chart:
    """The fraction of the time that each way to restart loses, by part."""
    of_ways = {each.way: each.shares for each in found}
    parts = [part for part in PARTS if any(each.get(part) for each in of_ways.values())]

    def draw(axes: Axes) -> None:
        end = _stacked(axes, of_ways, parts, lambda _, end: show_share(end))
        _linear_axis(axes, 1.4 * end, _show_part, "share of the time")
        _rows(axes, list(of_ways), marked=list(of_ways).index(mode))

    return Chart((Panel("Share of the time that is lost", draw, _height(len(found))),))


# --- advice -----------------------------------------------------------------------------------------------------------


def advice_chart(advice: Advice) -> Chart:
    """The losses of the choices of the front by cause, without the restart time that all of them lose."""
    labels = {f"{number}  {describe(choice.job)}": choice for number, choice in enumerate(shown(advice), 1)}
    return Chart(
        (_losses_panel("What each choice loses, and time between calls", labels, least_restart(advice.front), 0),)
    )


def _losses_panel(title: str, labels: Mapping[str, Choice], least: float, marked: int | None) -> Panel:
    parts = ("writing", "doing again", "coming back slower")
    wastes = {label: choice.waste for label, choice in labels.items()}
    losses = {
        label: dict(zip(parts, (waste.cost, waste.rework, waste.restart - least), strict=True))
        for label, waste in wastes.items()
    }

    def draw(axes: Axes) -> None:
        end = _stacked(axes, losses, parts, lambda label, _: f"every {show_seconds(labels[label].cadence.period_s)}")
        _linear_axis(axes, 1.6 * end, _show_part, "share of the time that is lost")
        _rows(axes, list(labels), marked=marked)

    return Panel(title, draw, _height(len(labels)))


#: Times of a checkpoint in the chart: (level, or "" for the call; label; color; marker).
_UNTIL = (
    ("", "training waits", _PINK, "o"),
    (Level.LOCAL, "until local", _VIOLET, "s"),
    (Level.PARTNER, "until partner", _TEAL, "s"),
    (Level.PARITY, "until parity", _OLIVE, "s"),
    (Level.PERSISTENT, "until persistent", _BROWN, "^"),
)


def jobs_chart(found: Mapping[str, Choice]) -> Chart:
    """The advice for several jobs on common scales: times of a checkpoint, and losses."""
    times = [{"": choice.blocked_s, **choice.complete_s} for choice in found.values()]

    def draw(axes: Axes) -> None:
        for level, words, colour, mark in _UNTIL:
            places = [(of_job[level], row) for row, of_job in enumerate(times) if level in of_job]
            if places:
                axes.plot(*zip(*places, strict=True), mark, color=colour, ms=8, label=words)
        _rows(axes, list(found))
        _log_axis(axes, "x", [seconds for of_job in times for seconds in of_job.values()], show_seconds, _TIMES_S)
        axes.set_xlabel("from the call on")

    least = min(choice.waste.restart for choice in found.values())
    losses = _losses_panel("What is lost as advised, and time between calls", found, least, None)
    return Chart((Panel("Time of one checkpoint", draw, _height(len(found))), losses), "Comparison")
