"""The activities of all nodes during one checkpoint, for the picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deeppart.model import Level

from .bandwidth_sharing import by_node
from .stages import Job
from .times import Times

#: Rows of the picture, per node, from top to bottom: what runs side by side there.
LANES = ("training", "store", "protect", "flush")
#: Nodes that are looked at.
MOST_NODES = 4096
#: What differs by less, as a share of the whole checkpoint, or of its bytes, is the same to the eye.
_SAME = 0.03


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


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that do the same, to within 3 %.

    Attributes:
        nodes: their numbers, ascending.
        bars: of the first of them.
    """

    nodes: tuple[int, ...]
    bars: tuple[Bar, ...]

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
