"""The timeline of one checkpoint as a drawing for the page: a row per node and lane, a bar per stage."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from deeppart.model.units import show_bytes, show_seconds

from ..timing.timeline import LANES, Bar

_WIDTH, _LABELS, _ROW, _GAP, _AXIS = 1080, 130, 15, 12, 34
_COLOURS = {
    "plan": "#7a7f87", "copy": "#e0762c", "train": "#2a9d6f", "encode": "#8a6fd1", "write": "#2f6fde",
    "exchange copies": "#b3478f", "exchange parity": "#c9a227", "flush": "#c0392b",
}  # fmt: skip
_TICKS = 8


def timeline_svg(bars: Sequence[Bar]) -> str:
    """The drawing; bars may overlap within a lane, later ones are narrower then."""
    end_s = max((bar.end_s for bar in bars), default=1.0)
    nodes = sorted({bar.node for bar in bars})
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in bars)]
    block = len(lanes) * _ROW + _GAP
    height = len(nodes) * block + _AXIS
    scale = (_WIDTH - _LABELS - 20) / end_s
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="timeline of one checkpoint">'
    ]
    for tick in range(_TICKS + 1):
        at_s = end_s * tick / _TICKS
        x = _LABELS + at_s * scale
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _AXIS + 4}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{height - 12}">{escape(show_seconds(at_s))}</text>')
    for row, node in enumerate(nodes):
        top = row * block
        parts.append(f'<text class="node" x="0" y="{top + _ROW}">node {node}</text>')
        for place, lane in enumerate(lanes):
            y = top + place * _ROW
            parts.append(f'<text class="lane" x="{_LABELS - 8}" y="{y + _ROW - 4}">{lane}</text>')
            mine = [bar for bar in bars if bar.node == node and bar.lane == lane]
            for number, bar in enumerate(mine):
                inset = 3 if any(other.begin_s <= bar.begin_s < other.end_s for other in mine[:number]) else 0
                parts.append(_bar(bar, y + inset, _ROW - 2 - 2 * inset, scale))
    parts.append("</svg>")
    return "".join(parts)


def legend_html() -> str:
    """A legend of the colours."""
    items = (f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in _COLOURS.items())
    return f'<p class="legend">{"".join(items)}</p>'


def _bar(bar: Bar, y: float, height: float, scale: float) -> str:
    x = _LABELS + bar.begin_s * scale
    width = max(0.8, (bar.end_s - bar.begin_s) * scale)
    words = f"node {bar.node}, {bar.what}: {show_seconds(bar.end_s - bar.begin_s)}, from {show_seconds(bar.begin_s)} on"
    words += f", {show_bytes(bar.nbytes)}" if bar.nbytes else ""
    faint = ' opacity="0.35"' if bar.what == "train" else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}" rx="2" '
        f'fill="{_COLOURS[bar.what]}"{faint}>'
        f"<title>{escape(words)}</title></rect>"
    )
