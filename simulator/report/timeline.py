"""The timeline of one checkpoint: what each node does when, and its drawing for a page.

Positions are in percent of the width, so that bars grow with the page and its text does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from deeppart.model import Level, show_bytes, show_seconds

from ..timing.stages import Job, Times, by_node
from .chart import Mark, time_labels, time_ticks, variable
from .tables import Columns, Table, table_of

#: Rows of the picture, per node, from top to bottom: what runs side by side there.
LANES = ("training", "store", "protect", "flush")
#: Nodes that are looked at.
MOST_NODES = 4096
#: What differs by less, as a share of the whole checkpoint, or of its bytes, is the same to the eye.
_SAME = 0.03


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a node does for a while."""

    node: int
    lane: str  # one of LANES
    what: str  # "plan", "copy", "encode", "write", "exchange copies", "exchange parity", "flush" or "train"
    begin_s: float  # begin_s, end_s: from the call on
    end_s: float
    nbytes: int = 0  # moved meanwhile, as far as that means something


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that do the same, to within 3 %."""

    nodes: tuple[int, ...]  # their numbers, ascending
    bars: tuple[Bar, ...]  # of the first of them

    @property
    def words(self) -> str:
        """The nodes, such as "nodes 1 to 7: the same"."""
        spans: list[list[int]] = []
        for node in self.nodes:
            if spans and node == spans[-1][1] + 1:
                spans[-1][1] = node
            else:
                spans.append([node, node])
        texts = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in spans]
        if len(self.nodes) == 1:
            return f"node {texts[0]}"
        if len(texts) > _MOST_SPANS:
            return f"nodes {', '.join(texts[:_MOST_SPANS])} and others, {len(self.nodes):,} in all: the same"
        return f"nodes {', '.join(texts)}: the same"


#: Runs of numbers that are named.
_MOST_SPANS = 3


def fold(bars: Sequence[Bar]) -> list[Group]:
    """Nodes that do the same as one, by their first nodes."""
    end_s = max((bar.end_s for bar in bars), default=0.0)
    by_number: dict[int, list[Bar]] = {}
    for bar in bars:
        by_number.setdefault(bar.node, []).append(bar)
    alike: list[tuple[list[int], list[Bar]]] = []
    for node, mine in sorted(by_number.items()):
        for nodes, others in alike:
            if _same(mine, others, _SAME * end_s):
                nodes.append(node)
                break
        else:
            alike.append(([node], mine))
    return [Group(tuple(nodes), tuple(mine)) for nodes, mine in alike]


def _same(some: Sequence[Bar], others: Sequence[Bar], within_s: float) -> bool:
    return len(some) == len(others) and all(
        one.lane == other.lane
        and one.what == other.what
        and abs(one.begin_s - other.begin_s) <= within_s
        and abs(one.end_s - other.end_s) <= within_s
        and abs(one.nbytes - other.nbytes) <= _SAME * max(one.nbytes, other.nbytes)
        for one, other in zip(some, others, strict=True)
    )


def timeline(job: Job, times: Times) -> list[Bar]:
    """The bars of one checkpoint, of the first nodes; each as its slowest rank takes it."""
    shown = min(job.nodes, MOST_NODES)
    width = job.ranks_per_node
    capture, encode, stored, flushed, raw, encoded = (
        by_node(each, width)
        for each in (times.capture, times.encode, times.stored, times.flushed, times.raw, times.encoded)
    )
    writes, flushes = bool(times.local.any()), bool(times.persistent.any())
    done = times.complete()
    copies_from = times.blocked_s if times.lazy else times.plan
    captured = copies_from + float(times.capture.max())
    last = Level.PARITY if times.parity.any() else Level.PARTNER
    shared_s = captured + times.limited if times.limited else 0.0  # the job's own limit is for all that leaves a node
    bars = []
    for node in range(shown):
        copying = float(capture[node].max())
        bytes_in, bytes_out = int(raw[node].sum()), int(encoded[node].sum())
        bars.append(Bar(node, "training", "plan", 0.0, times.plan))
        lane = "store" if times.lazy else "training"
        bars.append(Bar(node, lane, "copy", copies_from, copies_from + copying, bytes_in))
        bars.append(Bar(node, "training", "train", times.blocked_s, max(done.values(), default=captured)))
        begin = copies_from + copying
        if encode[node].any():
            bars.append(Bar(node, "store", "encode", begin, begin + float(encode[node].max()), bytes_in))
        if writes and stored[node].any():
            bars.append(Bar(node, "store", "write", begin, begin + float(stored[node].max()), bytes_out))
        ready = done.get(Level.LOCAL, captured)
        for level, took in ((Level.PARTNER, times.partner), (Level.PARITY, times.parity)):
            if took[node]:
                what = "exchange copies" if level == Level.PARTNER else "exchange parity"
                end_s = ready + float(took[node])
                if level == last:
                    end_s = max(end_s, shared_s)
                bars.append(Bar(node, "protect", what, ready, end_s, bytes_out))
                ready += float(took.max())
        if flushes and flushed[node].any():
            end_s = max(begin + float(flushed[node].max()), shared_s)
            bars.append(Bar(node, "flush", "flush", begin, end_s, bytes_out))
    return [bar for bar in bars if bar.end_s > bar.begin_s]


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


def bars_table(groups: Sequence[Group]) -> Table:
    """The bars as numbers."""
    columns: Columns = {
        "nodes": lambda line: line[0],
        "what": lambda line: line[1].what,
        "from": lambda line: show_seconds(line[1].begin_s),
        "takes": lambda line: show_seconds(line[1].end_s - line[1].begin_s),
        "bytes": lambda line: show_bytes(line[1].nbytes) if line[1].nbytes else "",
    }
    shown = [(group.words, bar) for group in groups for bar in group.bars if bar.what != "train"]
    return table_of("one checkpoint", shown, columns)


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
