"""The activities of all nodes during one checkpoint, for the picture of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deeppart.model import Level

from .bandwidth_sharing import by_node
from .stages import Job, Times

#: Rows of the picture, per node, from top to bottom: what runs side by side there.
LANES = ("training", "store", "protect", "flush")
#: Nodes that are shown.
MOST_NODES = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a node does for a while.

    Attributes:
        node: its number.
        lane: one of LANES.
        what: "plan", "copy", "encode", "write", "exchange copies", "exchange parity", "flush" or "train".
        begin_s, end_s: from the call on.
        nbytes: moved meanwhile, as far as that means something.
    """

    node: int
    lane: str
    what: str
    begin_s: float
    end_s: float
    nbytes: int = 0


def timeline(job: Job, times: Times) -> list[Bar]:
    """The bars of one checkpoint, of the first nodes; each as its slowest rank takes it."""
    shown = min(job.nodes, MOST_NODES)
    width = job.ranks_per_node
    capture, encode, local, persistent, raw, encoded = (
        by_node(each, width)
        for each in (times.capture, times.encode, times.local, times.persistent, times.raw, times.encoded)
    )
    done = times.complete()
    captured = times.plan + float(times.capture.max())
    bars = []
    for node in range(shown):
        copying = float(capture[node].max())
        bytes_in, bytes_out = int(raw[node].sum()), int(encoded[node].sum())
        bars.append(Bar(node, "training", "plan", 0.0, times.plan))
        if not times.lazy:
            bars.append(Bar(node, "training", "copy", times.plan, times.plan + copying, bytes_in))
        else:
            bars.append(Bar(node, "store", "copy", times.plan, times.plan + copying, bytes_in))
        bars.append(Bar(node, "training", "train", times.blocked_s, max(done.values(), default=captured)))
        begin = times.plan + copying
        if encode[node].any():
            bars.append(Bar(node, "store", "encode", begin, begin + float(encode[node].max()), bytes_in))
        if local[node].any():
            stored = begin + float(np.maximum(encode[node], local[node]).max())
            bars.append(Bar(node, "store", "write", begin, stored, bytes_out))
        ready = done.get(Level.LOCAL, captured)
        for level, took in ((Level.PARTNER, times.partner), (Level.PARITY, times.parity)):
            if took[node]:
                what = "exchange copies" if level == Level.PARTNER else "exchange parity"
                bars.append(Bar(node, "protect", what, ready, ready + float(took[node]), bytes_out))
                ready += float(took.max())
        if persistent[node].any():
            ends = np.maximum(np.maximum(encode[node], local[node]), persistent[node]).max()
            bars.append(Bar(node, "flush", "flush", begin, begin + float(ends), bytes_out))
    return [bar for bar in bars if bar.end_s > bar.begin_s]
