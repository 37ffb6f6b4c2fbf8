"""Charts: panels that are drawn apart for a page, where they stack, and side by side into a picture file.

A panel is as wide as a phone's screen, so that its text stays as large as it was made. Any two of the seven colours
can be told apart with normal sight and with each of the three kinds of colour blindness: they are at least 15 apart by
CIEDE2000, with colour blindness computed after G. M. Machado et al., "A Physiologically-based Model for Simulation of
Color Vision Deficiency" (2009). On their paper all have the contrast that WCAG 2.2 asks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from deeppart.model import show_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# --- colours ----------------------------------------------------------------------------------------------------------


#: Name in the page's style -> (colour on light paper, on dark paper).
COLOURS = MappingProxyType(
    {
        "violet": ("#8066e6", "#8066e6"),
        "pink": ("#e63380", "#ff6699"),
        "teal": ("#339999", "#4cffe6"),
        "olive": ("#808000", "#999900"),
        "brown": ("#801a00", "#ffe680"),
        "green": ("#1a664c", "#338066"),
        "purple": ("#661a99", "#b2b2ff"),
    }
)
#: Text and lines beside it: name -> (on light paper, on dark paper).
INKS = MappingProxyType(
    {
        "ink": ("#1d2127", "#e6e8eb"),
        "soft": ("#5a626d", "#9ba4af"),
        "line": ("#d9dde3", "#343a42"),
        "paper": ("#fafbfc", "#15181c"),
        "card": ("#ffffff", "#1c2025"),
    }
)
#: In the order in which series get them.
SERIES = ("violet", "pink", "teal", "brown", "olive", "green", "purple")
_ALL = MappingProxyType({**COLOURS, **INKS})
_LIGHT = MappingProxyType({light: name for name, (light, _) in _ALL.items()})


def light(name: str) -> str:
    """A colour as it is on light paper, and in pictures in files."""
    return _ALL[name][0]


def variable(name: str) -> str:
    """A colour in the page, which follows the reader's scheme."""
    return f"var(--{name})"


def variables_css() -> str:
    """The rules of the page that say what each colour is: on paper always the light ones."""
    lights, darks = (";".join(f"--{name}:{pair[which]}" for name, pair in _ALL.items()) for which in (0, 1))
    return (
        f":root{{color-scheme:light dark;{lights}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{darks}}}}}\n"
    )


def as_variables(drawing: str) -> str:
    """A drawing in the colours of light paper with the page's variables in their place."""
    return re.sub(
        r"#[0-9a-f]{6}\b", lambda found: variable(_LIGHT[found[0]]) if found[0] in _LIGHT else found[0], drawing
    )


# --- marks of axes ----------------------------------------------------------------------------------------------------


_DAY_S = 86400.0
#: Units of an axis of times from 0 on.
_UNITS = ((_DAY_S, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
#: Round times from a minute to a day, from fine to coarse.
_FINE_S = (*(60.0 * minutes for minutes in (1, 2, 5, 10, 20)), *(3600.0 * hours for hours in (1, 2, 5, 10)))
_COARSE_S = (60.0, 600.0, 3600.0, 36000.0)
#: A rounding error at the ends of an axis.
_NEARLY = 1e-9


def linear_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, evenly apart, as many as fit."""
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(most - 1, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(f"{mark:.12g}") for mark in found if low <= mark <= high * (1 + _NEARLY)] or [low]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, both above 0, for a logarithmic axis."""
    digits = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return _fitting(low, high, most, [m * 10.0**n for n in digits for m in (1, 2, 5)], [10.0**n for n in digits])


def log_time_ticks(low_s: float, high_s: float, most: int = 6) -> list[float]:
    """The same for times."""
    digits = range(math.floor(math.log10(low_s)) - 1, 2)
    days = range(max(1, math.ceil(math.log10(max(high_s, _DAY_S) / _DAY_S)) + 1))
    fine = [m * 10.0**n for n in digits for m in (1, 2, 5) if m * 10.0**n < 30.0]  # 50 s is close to 1 min
    fine += [*_FINE_S, *(m * _DAY_S * 10.0**n for n in days for m in (1, 2, 5))]
    coarse = [10.0**n for n in digits] + [*_COARSE_S, *(_DAY_S * 10.0**n for n in days)]
    return _fitting(low_s, high_s, most, fine, coarse)


def _fitting(low: float, high: float, most: int, fine: Sequence[float], coarse: Sequence[float]) -> list[float]:
    """Of some marks as many as fit; evenly apart where hardly one of them lies there."""
    for marks in (fine, coarse, *(coarse[::every] for every in range(2, 9))):
        found = [float(f"{mark:.12g}") for mark in marks if low * (1 - _NEARLY) <= mark <= high * (1 + _NEARLY)]
        if len(found) <= most:
            return found if len(found) > 1 else linear_ticks(low, high, most)
    return [low, high]


# --- panels -----------------------------------------------------------------------------------------------------------


Which = Literal["x", "y"]
#: Shape of a mark -> matplotlib's name of it; others are lines or blocks.
MARKERS = {"point": "o", "square": "s", "triangle": "^", "hollow": "o", "ring": "o"}
#: Of a panel, and of its text, in pixels.
WIDTH, TEXT, SMALL = 340, 12.0, 11.5
_INCH = 72.0
#: Of a row: how much of it its bar takes, below its label, and how many letters there is room for.
_BAR, _MOST_LETTERS = 0.36, 50
#: Of a legend, in pixels, about: a mark with what is around it, and a letter.
_MARK_WIDTH, _LETTER_WIDTH = 55.0, 6.8


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the legend."""

    label: str  # what the mark stands for
    colour: str  # its name in the palette
    shape: str = "block"  # "block", "line", "dotted", "dashed", "point", "square", "triangle", "hollow" or "ring"


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing."""

    title: str  # what it shows
    draw: Callable[[Axes], None]  # draws it
    height: int = 280  # in pixels


@dataclass(frozen=True, slots=True)
class Chart:
    """Drawings that belong together."""

    name: str  # of the chart, which its identifiers in a page begin with
    panels: tuple[Panel, ...]  # its drawings
    key: tuple[Mark, ...] = ()  # what their marks stand for
    heading: str = ""  # for a picture that stands alone

    def svgs(self) -> list[str]:
        """Each panel as an element of a page, without a background; the same chart gives the same bytes."""
        import matplotlib

        found = []
        for number, panel in enumerate(self.panels):
            figure = _figure((panel,), 1.0)
            text, name = StringIO(), f"{self.name}-{number}"
            with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
                figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
            whole = text.getvalue()
            found.append(_embedded(whole[whole.index("<svg") :], name, panel.title))
        return found

    def save(self, path: Path) -> None:
        """Write all panels to one picture file, on white."""
        columns = _columns(self.key, 1.15 * WIDTH * len(self.panels))
        above = 1.8 * TEXT * (bool(self.heading) - (-len(self.key) // columns))
        figure = _figure(self.panels, 1.15, above, titles=True)
        if self.heading:
            figure.suptitle(self.heading, color=light("ink"), fontsize=TEXT + 1, parse_math=False)
        if self.key:
            figure.legend(
                handles=[_handle(mark) for mark in self.key], loc="outside lower center",
                ncols=columns, frameon=False, fontsize=SMALL,
                labelcolor=light("ink"),
            )  # fmt: skip
        figure.savefig(path, dpi=140, facecolor="white")


# --- axes -------------------------------------------------------------------------------------------------------------


def log_axis(
    axes: Axes, which: Which, values: Iterable[float], show: Callable[[float], str], most: int = 6, margin: float = 0.05
) -> None:
    """A logarithmic axis for values above 0, with round marks."""
    low, high = _around(values, margin)
    _log(axes, which, (low, high), log_ticks(low, high, most), show)


def log_time_axis(axes: Axes, which: Which, values_s: Iterable[float], most: int = 6) -> None:
    """The same for times."""
    low, high = _around(values_s)
    _log(axes, which, (low, high), log_time_ticks(low, high, most), show_time)


def linear_axis(axes: Axes, which: Which, high: float, show: Callable[[float], str], most: int = 5) -> None:
    """An axis from 0 on, with round marks."""
    axes.set(**{f"{which}lim": (0, high or 1.0)})
    _mark(axes, which, linear_ticks(0, high or 1.0, most), show)


def time_axis(axes: Axes, which: Which, end_s: float, most: int = 5) -> None:
    """An axis of times from 0 on, with round marks in one unit."""
    end_s = end_s or 1.0
    axes.set(**{f"{which}lim": (0, end_s)})
    factor, unit = next((each for each in _UNITS if end_s >= 2 * each[0]), _UNITS[-1])
    ticks = [factor * mark for mark in linear_ticks(0.0, end_s / factor, most)]
    _mark(axes, which, ticks, lambda mark: f"{mark / factor:.6g} {unit}" if mark else "0")


def show_time(seconds: float) -> str:
    """A round time on an axis."""
    return f"{seconds / 60:.6g} min" if 60 <= seconds < 100 else show_seconds(seconds)


def show_count(value: float) -> str:
    """A count on an axis."""
    return f"{value:,.6g}" if value < 1e6 else f"{value / 1e6:,.6g} M"


def show_times(value: float) -> str:
    """A factor on an axis."""
    return f"{show_count(value)}x"


def show_part(share: float) -> str:
    """A share on an axis."""
    return f"{100 * share:.6g} %"


def rows(axes: Axes, labels: Sequence[str], marked: int | None = None) -> None:
    """Rows from top to bottom, each with its label above: there is room for long ones at any width."""
    axes.set_ylim(len(labels) - 0.6, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if marked is not None:
        axes.axhspan(marked - 0.72, marked + 0.28, color=light("line"), lw=0, zorder=0)
    for place, label in enumerate(labels):
        text = label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 3]}..."
        axes.text(
            0.0, place - 0.24, text, transform=axes.get_yaxis_transform(), va="bottom", ha="left", fontsize=SMALL,
            color=light("ink"), clip_on=False, in_layout=False, parse_math=False,
        )  # fmt: skip


def rows_height(count: int) -> int:
    """Pixels of a panel with so many rows."""
    return 38 * count + 60


def bars(
    axes: Axes,
    widths: Sequence[float],
    colour: str,
    left: Sequence[float] | None = None,
    places: Sequence[int] | None = None,
    height: float = 1.0,
) -> None:
    """Bars in some rows, in all of them if not said otherwise."""
    where = range(len(widths)) if places is None else places
    axes.barh(where, widths, height=_BAR * height, left=left, color=light(colour))


# --- drawing ----------------------------------------------------------------------------------------------------------


def _around(values: Iterable[float], share: float = 0.05) -> tuple[float, float]:
    """A little more than from the least to the most."""
    found = [value for value in values if value > 0] or [1.0]
    low, high = min(found), max(found)
    margin = max(1.15, (high / low) ** share)
    return low / margin, high * margin


def _log(
    axes: Axes, which: Which, limits: tuple[float, float], ticks: Sequence[float], show: Callable[[float], str]
) -> None:
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    _mark(axes, which, ticks, show)


def _mark(axes: Axes, which: Which, ticks: Sequence[float], show: Callable[[float], str]) -> None:
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_minor_locator(_nowhere())
    axis.set_ticks(ticks, labels=[show(tick) for tick in ticks])


def _nowhere() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _figure(panels: Sequence[Panel], larger: float, above: float = 0.0, *, titles: bool = False) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    height = max((panel.height for panel in panels), default=280)
    with rc_context({"font.size": TEXT}):
        figure = NewFigure(
            figsize=(larger * WIDTH * max(1, len(panels)) / _INCH, (larger * height + above) / _INCH),
            layout="constrained",
        )
        axes: list[Axes] = list(figure.subplots(1, max(1, len(panels)), squeeze=False)[0])
    for panel, axis in zip(panels, axes, strict=False):
        _clean(axis)
        panel.draw(axis)
        if titles:
            axis.set_title(panel.title, fontsize=TEXT, color=light("ink"), parse_math=False)
    return figure


def _clean(axis: Axes) -> None:
    axis.grid(True, which="major", color=light("line"), lw=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=light("soft"), which="both", labelsize=SMALL, length=3)
    axis.xaxis.label.set_color(light("soft"))
    axis.yaxis.label.set_color(light("soft"))
    for side, spine in axis.spines.items():
        spine.set_color(light("soft"))
        spine.set_visible(side in ("left", "bottom"))


def _embedded(drawing: str, name: str, title: str) -> str:
    """A drawing whose identifiers are its own, and whose colours are the page's."""
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r"font-family: [^;]*;", "", drawing.replace("xlink:href", "href"))
    drawing = re.sub(r'(url\(|href=")#', rf"\1#{name}-", drawing)
    drawing = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', drawing, count=1)
    return as_variables(drawing).replace('role="img">', f'role="img" aria-label="{escape(title)}">', 1)


def _columns(key: Sequence[Mark], width: float) -> int:
    """In how many columns the lines of a legend fit."""
    widest = _MARK_WIDTH + _LETTER_WIDTH * max((len(mark.label) for mark in key), default=0)
    return max(1, min(len(key), int(width / widest)))


def _handle(mark: Mark) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour = light(mark.colour)
    if mark.shape == "block":
        return Patch(color=colour, label=mark.label)
    styles: dict[str, Literal["-", ":", "--"]] = {"line": "-", "dotted": ":", "dashed": "--"}
    face = "none" if mark.shape in ("hollow", "ring") else colour
    return Line2D(
        [], [], color=colour, linestyle=styles.get(mark.shape, ""), marker=MARKERS.get(mark.shape, ""),
        markerfacecolor=face, markersize=9 if mark.shape == "ring" else 6, label=mark.label,
    )  # fmt: skip
