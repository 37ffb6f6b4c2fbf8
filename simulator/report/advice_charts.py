"""The chart of the advice: what each choice loses, and what it writes for that to the file system."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from deeppart.model.units import show_bytes, show_seconds

from ..advise.choose import Advice, Choice, as_good_as_least, describe, least_restart, loss_of, shown
from .chart import SMALL, Chart, Mark, Panel, bars, linear_axis, log_axis, rows, rows_height, show_part
from .palette import light

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Parts of what a choice loses: (name in the model, in words, colour).
PARTS = (("cost", "writing", "violet"), ("rework", "doing again", "pink"), ("restart", "coming back slower", "brown"))
#: Of the plot of the front, about, to keep numbers apart: pixels, and of a number's box.
_PLOT, _BOX = (275.0, 225.0), (17.0, 13.0)
_AROUND = ((0, 1), (1, 0), (-1, 0), (0, -1), (0.9, 0.9), (-0.9, 0.9), (0.9, -0.9), (-0.9, -0.9))


def advice_chart(advice: Advice) -> Chart:
    """What the choices of the front lose, by cause, and the front itself; without the time to come back of all."""
    choices = shown(advice)
    chosen = next(number for number, choice in enumerate(choices) if choice is advice.chosen)
    key = [Mark(words, colour) for _, words, colour in PARTS]
    key += [
        Mark("a choice; numbers as in the list", "violet", "point"),
        Mark("worse in both, but easier on drives or simpler", "violet", "hollow"),
        Mark("advised", "pink", "ring"),
        Mark("below: as good as the least", "soft", "dashed"),
    ]
    panels = (
        Panel(
            "What each choice loses, and time between calls",
            partial(_losses, advice, choices, chosen),
            rows_height(len(choices)),
        ),
        Panel("Loss against bytes a day to the file system", partial(_front, advice, choices), 320),
    )
    return Chart("advice", panels, tuple(key))


def label_of(number: int, choice: Choice) -> str:
    """A choice in the chart."""
    return f"{number}  {describe(choice.job)}"


def losses(axes: Axes, parts: Sequence[tuple[float, float, float]], words: Sequence[str]) -> None:
    """Stacked bars of shares of the time, and words at their ends."""
    left = [0.0] * len(parts)
    for place, (_, _, colour) in enumerate(PARTS):
        widths = [max(0.0, each[place]) for each in parts]
        bars(axes, widths, colour, left)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, (end, text) in enumerate(zip(left, words, strict=True)):
        axes.annotate(
            text, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=SMALL, color=light("soft")
        )
    linear_axis(axes, "x", 2.1 * max(left, default=0.0), show_part, 4)


def _losses(advice: Advice, choices: Sequence[Choice], chosen: int, axes: Axes) -> None:
    least = least_restart(advice.front)
    losses(
        axes,
        [(each.waste.cost, each.waste.rework, each.waste.restart - least) for each in choices],
        [
            ("advised, " if number == chosen else "") + f"every {show_seconds(choice.cadence.period_s)}"
            for number, choice in enumerate(choices)
        ],
    )
    rows(axes, [label_of(number, each) for number, each in enumerate(choices, 1)], marked=chosen)
    axes.set_xlabel("share of the time that is lost")


def _front(advice: Advice, choices: Sequence[Choice], axes: Axes) -> None:
    least = least_restart(advice.front)
    places = [(max(1.0, choice.drained_daily_bytes), loss_of(choice, least)) for choice in advice.front]
    line = _staircase(places)
    on_line = [place in line for place in places]
    if len(line) > 1:
        axes.step(*zip(*line, strict=True), where="post", color=light("violet"), lw=1.2)
    for is_on, face in ((False, light("card")), (True, light("violet"))):
        mine = [place for place, on in zip(places, on_line, strict=True) if on is is_on]
        if mine:
            axes.plot(*zip(*mine, strict=True), "o", ms=5.5, color=light("violet"), markerfacecolor=face)
    chosen = next(place for place, choice in zip(places, advice.front, strict=True) if choice is advice.chosen)
    axes.plot(*chosen, "o", ms=13, color=light("pink"), markerfacecolor="none", mew=2.2)
    axes.axhline(as_good_as_least(advice.front), ls="--", color=light("soft"), lw=1.2)
    log_axis(axes, "x", [nbytes for nbytes, _ in places], show_bytes, most=4, margin=0.1)
    log_axis(axes, "y", [*(loss for _, loss in places), as_good_as_least(advice.front)], show_part, margin=0.1)
    numbers = {id(choice): number for number, choice in enumerate(choices, 1)}
    _number(axes, places, [numbers.get(id(choice), 0) for choice in advice.front], places.index(chosen))
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
            inside = _BOX[0] / 2 < at[0] < _PLOT[0] - _BOX[0] / 2 and _BOX[1] / 2 < at[1] < _PLOT[1] - _BOX[1] / 2
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
