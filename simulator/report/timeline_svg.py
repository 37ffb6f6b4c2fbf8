"""The timeline of one checkpoint as a drawing for the page: a row per kind of node and lane, a bar per stage.

Places are in percent of the width, so that bars grow with the page and its text does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from deeppart.model.units import show_bytes, show_seconds

from ..timing.timeline import LANES, Bar, Group
from .chart import Mark
from .palette import variable
from .ticks import time_labels, time_ticks

_ROW = 18
#: Activity -> (colour, in words).
_COLOURS = {
    "plan": ("pink", "plan, copy"),
    "copy": ("pink", "plan, copy"),
    "train": ("green", "training goes on"),
    "encode": ("purple", "encode"),
    "write": ("violet", "write"),
    "exchange copies": ("teal", "exchange copies"),
    "exchange parity": ("olive", "exchange parity"),
    "flush": ("brown", "flush"),
}


def timeline_html(groups: Sequence[Group], end_s: float | None = None) -> str:
    """The drawing; bars may overlap within a lane, later ones are narrower then."""
    bars = [bar for group in groups for bar in group.bars]
    last_s = end_s or max((bar.end_s for bar in bars), default=1.0)
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in bars)]
    ticks = time_ticks(last_s)
    parts = []
    for group in groups:
        names = "".join(f"<span>{lane}</span>" for lane in lanes)
        parts.append(
            f'<p class="group">{escape(group.words)}</p><div class="lanes"><div>{names}</div>'
            f"{_drawing(group, lanes, last_s, ticks)}</div>"
        )
    return "".join(parts) + _axis(ticks, last_s)


def legend_of(groups: Sequence[Group]) -> list[Mark]:
    """What the colours stand for, of those that there are."""
    there = {bar.what for group in groups for bar in group.bars}
    return [
        Mark(words, colour) for colour, words in dict.fromkeys(_COLOURS[what] for what in _COLOURS if what in there)
    ]


def numbers_of(groups: Sequence[Group]) -> list[list[str]]:
    """The bars as rows of a table with a head."""
    rows = [["nodes", "what", "from", "takes", "bytes"]]
    for group in groups:
        rows += [
            [
                group.words, bar.what, show_seconds(bar.begin_s), show_seconds(bar.end_s - bar.begin_s),
                show_bytes(bar.nbytes) if bar.nbytes else "",
            ]
            for bar in group.bars if bar.what != "train"
        ]  # fmt: skip
    return rows


def _drawing(group: Group, lanes: Sequence[str], last_s: float, ticks: Sequence[float]) -> str:
    height = len(lanes) * _ROW
    parts = [f'<svg height="{height}" role="img" aria-label="{escape(group.words)}">']
    parts += [
        f'<line x1="{100 * tick / last_s:.3f}%" x2="{100 * tick / last_s:.3f}%" y1="0" y2="{height + 6}"/>'
        for tick in ticks
    ]
    for place, lane in enumerate(lanes):
        mine = [bar for bar in group.bars if bar.lane == lane]
        for number, bar in enumerate(mine):
            inset = 3 if any(other.begin_s <= bar.begin_s < other.end_s for other in mine[:number]) else 0
            inset += 4 if bar.what == "train" else 0
            parts.append(_bar(bar, place * _ROW + 2 + inset, _ROW - 4 - 2 * inset, last_s))
    return "".join(parts) + "</svg>"


def _axis(ticks: Sequence[float], last_s: float) -> str:
    texts = (
        f'<text x="{100 * tick / last_s:.3f}%" y="14" text-anchor="{"start" if tick == 0 else "middle"}">'
        f"{escape(label)}</text>"
        for tick, label in zip(ticks, time_labels(ticks), strict=True)
    )
    return (
        '<div class="lanes"><span></span><svg height="20" role="img" aria-label="time since the call">'
        f"{''.join(texts)}</svg></div>"
    )


def _bar(bar: Bar, y: float, height: float, last_s: float) -> str:
    words = f"{bar.what}: {show_seconds(bar.end_s - bar.begin_s)}, from {show_seconds(bar.begin_s)} on"
    words += f", {show_bytes(bar.nbytes)}" if bar.nbytes else ""
    width = max(0.3, 100 * (bar.end_s - bar.begin_s) / last_s)
    return (
        f'<rect x="{100 * bar.begin_s / last_s:.3f}%" y="{y:.1f}" width="{width:.3f}%" height="{height}" '
        f'fill="{variable(_COLOURS[bar.what][0])}"><title>{escape(words)}</title></rect>'
    )
