"""From what the ranks measured to the figures that are shown: medians, ranges, and the ratios with their targets.

Pure: a document in, a document out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        who, metric: where the number comes from.
        label: what it says.
        moves_state: whether the whole state is moved in that time, so that it can be given in GB/s too.
    """

    who: str
    metric: str
    label: str
    moves_state: bool = False


LINES = (
    Line("limits", "visit_s", "address of every tensor, nothing else"),
    Line("limits", "fresh_s", "first touch of fresh memory", True),
    Line("limits", "fresh_copy_s", "  and a copy into it", True),
    Line("limits", "copy_s", "bare copy, leaf by leaf, warm memory", True),
    Line("limits", "torch_copy_s", "  the same by torch's copy_", True),
    Line("limits", "bare_copy_s", "  the faster of the two", True),
    Line("limits", "long_copy_s", "bare copy of one long leaf", True),
    Line("limits", "xxh3_s", "xxh3-128 of the share", True),
    Line("limits", "disk_write_s", "disk write, O_DIRECT + fsync", True),
    Line("limits", "disk_buffered_write_s", "disk write, buffered + fsync", True),
    Line("limits", "tmpfs_write_s", "tmpfs write", True),
    Line("limits", "cache_read_s", "page cache read", True),
    Line("limits", "bcast_s", "MPI broadcast of every share", True),
    Line("deeppart", "blocked_s", "checkpoint(): blocked", True),
    Line("deeppart", "planning_s", "  planning (flatten + agree)"),
    Line("deeppart", "flatten_s", "    flatten"),
    Line("deeppart", "agree_s", "    agree"),
    Line("deeppart", "capture_s", "  capture", True),
    Line("deeppart", "first_blocked_s", "first checkpoint(): blocked"),
    Line("deeppart", "first_local_s", "  until local"),
    Line("deeppart", "second_blocked_s", "second checkpoint(): blocked"),
    Line("deeppart", "local_s", "until local", True),
    Line("deeppart", "persistent_s", "until persistent", True),
    Line("deeppart", "restore_local_s", "restore from local", True),
    Line("deeppart", "restore_persistent_s", "restore from persistent", True),
    Line("deeppart", "bytes", "on disk"),
    Line("deeppart", "memory_bytes", "extra memory per rank, first saves"),
    Line("deeppart", "memory_over_share_bytes", "  more than the rank's share"),
    Line("deeppart", "mapped_bytes", "local files mapped besides"),
    Line("deeppart", "steady_memory_bytes", "extra memory per rank, later saves"),
    Line("deeppart", "restore_persistent_memory_bytes", "extra memory per rank, restore"),
    *(
        Line(who, metric, label, moves_state)
        for who in ("deeppart lazy", "deeppart verify", "deeppart tensor", "deeppart auto")
        for metric, label, moves_state in (
            ("blocked_s", "checkpoint(): blocked", True),
            ("held_s", "optimizer.step() held", False),
            ("local_s", "until local", True),
            ("persistent_s", "until persistent", True),
            ("restore_local_s", "restore from local", True),
            ("restore_persistent_s", "restore from persistent", True),
            ("bytes", "on disk", False),
            ("memory_bytes", "extra memory per rank, first saves", False),
        )
    ),
    Line("torch.save", "save_s", "rank 0 saves, fsync", True),
    Line("torch.save", "load_s", "torch.load on every rank", True),
    Line("torch.save", "restore_s", "torch.load + copy into live", True),
    Line("torch.save", "bytes", "on disk"),
    Line("torch.save", "memory_bytes", "extra memory per rank, save"),
    Line("torch.save", "restore_memory_bytes", "extra memory per rank, load"),
    *(
        Line(who, metric, label, moves_state)
        for who in ("safetensors", "ZipNN", "dcp zstd")
        for metric, label, moves_state in (
            ("save_s", "save, fsync", True),
            ("restore_s", "load into live", True),
            ("bytes", "on disk", False),
            ("memory_bytes", "extra memory per rank, save", False),
        )
    ),
    Line("dcp", "save_s", "dcp.save", True),
    Line("dcp", "restore_s", "dcp.load", True),
    Line("dcp", "bytes", "on disk"),
    Line("dcp", "memory_bytes", "extra memory per rank, save"),
    Line("dcp", "restore_memory_bytes", "extra memory per rank, load"),
    Line("dcp.async_save", "blocked_s", "blocked", True),
    Line("dcp.async_save", "done_s", "until done", True),
    Line("dcp.async_save", "memory_bytes", "extra memory per rank"),
    Line("dcp.async_save", "kept_blocked_s", "stager kept, warm: blocked", True),
    Line("dcp.async_save", "kept_done_s", "stager kept, warm: until done", True),
    Line("dcp.async_save", "staging_blocked_s", "use_async_staging: returned", True),
    Line("dcp.async_save", "staging_staged_s", "use_async_staging: state may change", True),
    Line("dcp.async_save", "staging_done_s", "use_async_staging: until done", True),
    Line("dcp.async_save", "process_blocked_s", "PROCESS, shared memory: blocked", True),
    Line("dcp.async_save", "process_done_s", "PROCESS, shared memory: until done", True),
    Line("torchsnapshot", "save_s", "take, fsync added", True),
    Line("torchsnapshot", "restore_s", "restore", True),
    Line("torchsnapshot", "bytes", "on disk"),
    Line("torchsnapshot", "memory_bytes", "extra memory per rank, take"),
    Line("torchsnapshot", "async_blocked_s", "async_take: blocked", True),
    Line("torchsnapshot", "async_done_s", "async_take: until done", True),
    Line("Orbax", "save_s", "save, numpy: rank 0 writes", True),
    Line("Orbax", "replicated_save_s", "save, JAX arrays: all ranks write", True),
    Line("Orbax", "restore_s", "restore, and copy into live", True),
    Line("Orbax", "bytes", "on disk"),
    Line("Orbax", "memory_bytes", "extra memory per rank, save"),
    Line("Orbax", "restore_memory_bytes", "extra memory per rank, restore"),
    Line("Orbax", "async_blocked_s", "async, numpy: blocked", True),
    Line("Orbax", "async_done_s", "async, numpy: until done", True),
    Line("Orbax", "async_memory_bytes", "extra memory per rank, async"),
)


@dataclass(frozen=True)
class Target:
    """A figure that is to be reached.

    Attributes:
        name: what is compared.
        above, below: "who metric" of numerator and denominator; no denominator: the figure itself.
        target: the value to reach; None for a figure that puts another in its place.
        at_most: whether less is better.
        unit: "x" for a ratio, "s" or "bytes".
        worst: compare the worst value of all rounds rather than the median.
    """

    name: str
    above: tuple[str, str]
    below: tuple[str, str] | None
    target: float | None
    at_most: bool = True
    unit: str = "x"
    worst: bool = False


TARGETS = (
    Target("blocked / bare copy", ("deeppart", "blocked_s"), ("limits", "bare_copy_s"), 1.15),
    Target("dcp.async_save blocked / blocked", ("dcp.async_save", "blocked_s"), ("deeppart", "blocked_s"), 8, False),
    Target("  a bare copy would get", ("dcp.async_save", "blocked_s"), ("limits", "bare_copy_s"), None),
    Target("first: blocked / copy into fresh memory", ("deeppart", "first_blocked_s"), ("limits", "fresh_copy_s"), 1.5),
    Target("lazy: blocked", ("deeppart lazy", "blocked_s"), None, 0.010, unit="s"),
    Target("lazy: held / dcp async staging", ("deeppart lazy", "held_s"), ("dcp.async_save", "staging_staged_s"), 1.0),
    Target("tensor: bytes / none", ("deeppart tensor", "bytes"), ("deeppart", "bytes"), None),
    Target("auto: until persistent / none", ("deeppart auto", "persistent_s"), ("deeppart", "persistent_s"), 1.05),
    Target("auto: until local / none", ("deeppart auto", "local_s"), ("deeppart", "local_s"), 1.05),
    Target("dcp zstd: save / dcp.save", ("dcp zstd", "save_s"), ("dcp", "save_s"), None),
    Target("dcp zstd: bytes / dcp.save", ("dcp zstd", "bytes"), ("dcp", "bytes"), None),
    Target("planning, steady state", ("deeppart", "planning_s"), None, 0.010, unit="s"),
    Target("memory beyond share", ("deeppart", "memory_over_share_bytes"), None, 64 * MIB, unit="bytes", worst=True),
    Target("until persistent / dcp.save", ("deeppart", "persistent_s"), ("dcp", "save_s"), 1.0),
    Target("restore from local / dcp.load", ("deeppart", "restore_local_s"), ("dcp", "restore_s"), 0.6),
    Target("restore from persistent / dcp.load", ("deeppart", "restore_persistent_s"), ("dcp", "restore_s"), 0.6),
)


#: For one line per contestant: who, and the metrics of blocked, durable, restored, bytes on disk, memory when saving.
BRIEFLY = (
    *(
        (who, "blocked_s", "persistent_s", "restore_persistent_s", "bytes", "memory_bytes")
        for who in ("deeppart", "deeppart lazy", "deeppart tensor", "deeppart auto")
    ),
    *(
        (who, "save_s", "save_s", "restore_s", "bytes", "memory_bytes")
        for who in ("torch.save", "safetensors", "ZipNN")
    ),
    *((who, "save_s", "save_s", "restore_s", "bytes", "memory_bytes") for who in ("dcp", "dcp zstd")),
    ("dcp.async_save", "blocked_s", "done_s", "", "", "memory_bytes"),
    ("torchsnapshot", "async_blocked_s", "async_done_s", "restore_s", "bytes", "memory_bytes"),
    ("Orbax", "async_blocked_s", "async_done_s", "restore_s", "bytes", "async_memory_bytes"),
)


def summarize(session: dict[str, Any], settings: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """The whole result of a run.

    Args:
        session: what rank 0 of the worker wrote.
    """
    return {
        "format": "deeppart-bench",
        "version": 1,
        "machine": machine | {"versions": session["versions"]},
        "settings": {key: value for key, value in settings.items() if key not in ("disk", "tmpfs")},
        "state": {key: session[key] for key in ("leaves", "parameters", "state_bytes", "share_bytes")},
        "restores_compared": session["restores_compared"],
        "skipped": session["skipped"],
        "measurements": [found for line in LINES if (found := _measurement(line, session)) is not None],
        "targets": [judged for target in TARGETS if (judged := _judge(target, session))["measured"] is not None],
    }


def _measurement(line: Line, session: dict[str, Any]) -> dict[str, Any] | None:
    values = _values(session, (line.who, line.metric))
    if not values:
        return None
    speed = session["state_bytes"] / median(values) if line.moves_state else None
    return asdict(line) | {
        "unit": "bytes" if line.metric.endswith("bytes") else "s",
        "values": values,
        "warmup": session["warmup"].get(line.who, {}).get(line.metric),  # None: there was too little memory then
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "bytes_per_s": speed,
    }


def _judge(target: Target, session: dict[str, Any]) -> dict[str, Any]:
    """Ratios are formed round by round, so that a machine that changes its speed changes both sides."""
    values = _values(session, target.above)
    if target.worst and target.above[1] in session["warmup"].get(target.above[0], {}):
        values.append(session["warmup"][target.above[0]][target.above[1]])
    if target.below is not None:
        below = _values(session, target.below)
        values = [a / b if b else math.inf for a, b in zip(values, below, strict=False)] if below else []
    measured = (max(values) if target.worst else median(values)) if values else None
    met = None
    if measured is not None and target.target is not None:
        met = measured <= target.target if target.at_most else measured >= target.target
    return {
        "name": target.name,
        "target": target.target,
        "at_most": target.at_most,
        "unit": target.unit,
        "measured": measured,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "met": met,
    }


def _values(session: dict[str, Any], source: tuple[str, str]) -> list[float]:
    who, metric = source
    return [turn[who][metric] for turn in session["rounds"] if who in turn and metric in turn[who]]
