"""The timeline of one checkpoint: what each node does when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deeppart.model import Level, show_bytes, show_seconds

from ..timing.stages import Job, Times, by_node
from .blocks import Columns, Table, table_of

#: Rows of the picture, per node, from top to bottom: what runs side by side there.
LANES = ("training", "store", "protect", "flush")
#: Activity -> (colour, in words).
COLOURS = {
    "plan": ("pink", "plan, copy"),
    "copy": ("pink", "plan, copy"),
    "train": ("green", "training goes on"),
    "encode": ("purple", "encode"),
    "write": ("violet", "write"),
    "exchange copies": ("teal", "exchange copies"),
    "exchange parity": ("olive", "exchange parity"),
    "flush": ("brown", "flush"),
}
#: A smaller difference is the same to the eye.
_SAME = 0.03


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a node does for a while."""

    lane: str  # one of LANES
    what: str  # of COLOURS
    begin_s: float  # begin_s, end_s: from the call on
    end_s: float
    nbytes: int = 0  # moved meanwhile, as far as that means something


@dataclass(frozen=True, slots=True)
class Group:
    """A node, and what it stands for."""

    words: str
    bars: tuple[Bar, ...]


def timeline(job: Job, times: Times) -> list[Group]:
    """The node that is done last and that which is done first; one of them where all take as long."""
    ends_s = by_node(times.capture + np.maximum(times.stored, times.flushed), job.ranks_per_node).max(axis=1)
    last, first = int(np.argmax(ends_s)), int(np.argmin(ends_s))
    if ends_s[first] >= (1 - _SAME) * ends_s[last]:
        return [Group("the node" if job.nodes == 1 else "each node", _bars(job, times, last))]
    return [
        Group(f"node {last:,}, which is done last", _bars(job, times, last)),
        Group(f"node {first:,}, which is done first", _bars(job, times, first)),
    ]


def _bars(job: Job, times: Times, node: int) -> tuple[Bar, ...]:
    """What one node does, each as its slowest rank takes it."""
    ranks = slice(node * job.ranks_per_node, (node + 1) * job.ranks_per_node)
    copying, encoding = float(times.capture[ranks].max()), float(times.encode[ranks].max())
    stored, flushed = float(times.stored[ranks].max()), float(times.flushed[ranks].max())
    bytes_in, bytes_out = int(times.raw[ranks].sum()), int(times.encoded[ranks].sum())
    done = times.complete()
    copies_from = times.blocked_s if times.lazy else times.plan
    captured = copies_from + float(times.capture.max())
    begin = copies_from + copying
    shared_s = captured + times.limited if times.limited else 0.0  # the job's own limit is for all that leaves a node
    bars = [
        Bar("training", "plan", 0.0, times.plan),
        Bar("store" if times.lazy else "training", "copy", copies_from, begin, bytes_in),
        Bar("training", "train", times.blocked_s, max(done.values(), default=captured)),
    ]
    if encoding:
        bars.append(Bar("store", "encode", begin, begin + encoding, bytes_in))
    if times.local.any() and stored:
        bars.append(Bar("store", "write", begin, begin + stored, bytes_out))
    ready, last = done.get(Level.LOCAL, captured), Level.PARITY if times.parity.any() else Level.PARTNER
    for level, what, took in (
        (Level.PARTNER, "exchange copies", times.partner), (Level.PARITY, "exchange parity", times.parity),
    ):  # fmt: skip
        if took[node]:
            end_s = max(ready + float(took[node]), shared_s if level == last else 0.0)
            bars.append(Bar("protect", what, ready, end_s, bytes_out))
            ready += float(took.max())
    if times.persistent.any() and flushed:
        bars.append(Bar("flush", "flush", begin, max(begin + flushed, shared_s), bytes_out))
    return tuple(bar for bar in bars if bar.end_s > bar.begin_s)


def bars_table(groups: Sequence[Group]) -> Table:
    """The bars as numbers."""
    columns: Columns = {
        "node": lambda line: line[0],
        "what": lambda line: line[1].what,
        "from": lambda line: show_seconds(line[1].begin_s),
        "takes": lambda line: show_seconds(line[1].end_s - line[1].begin_s),
        "bytes": lambda line: show_bytes(line[1].nbytes) if line[1].nbytes else "",
    }
    shown = [(group.words, bar) for group in groups for bar in group.bars if bar.what != "train"]
    return table_of("one checkpoint", shown, columns)
