"""Failure rates and a shape from a trace, as a machine file has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .rates import Rate, rate
from .record import FAILURES, KINDS, PREEMPTION, TIME_LIMIT, Floats, Trace
from .together import WINDOW_S, Together, merged, together
from .weibull import Shape, Times, fit_shape

#: Times that are equal, as far as a file without a resolution tells, are taken for half of this apart.
_RESOLUTION_S = 1.0
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the user says of the machine, where the file does not.

    Attributes:
        seconds: how long it was watched.
        nodes: how many were watched.
        ranks_per_node: processes on each.
        group_nodes: nodes that may fail together.
        window_s: what counts as together.
    """

    seconds: float | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    group_nodes: int | None = None
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """What a trace says of failures.

    Attributes:
        trace: with failures of nodes put together.
        rates: class, or "preemption" -> of one process, node, group, of the system, of one job.
        shape: of all classes together; None if there were too few failures.
        shapes: the same class by class, where there were enough.
        together: how often nodes fail together.
        group_nodes: nodes of a group.
        time_limits: runs that had had their time.
        notes: what was assumed.
    """

    trace: Trace
    rates: Mapping[str, Rate]
    shape: Shape | None
    shapes: Mapping[str, Shape]
    together: Together
    group_nodes: int
    time_limits: int
    notes: tuple[str, ...]

    @property
    def used_shape(self) -> float:
        """For a machine file: 1 where the times do not speak against exponential ones."""
        return 1.0 if self.shape is None or self.shape.exponential else self.shape.shape


def fit(trace: Trace, assumed: Assumed | None = None) -> Fit:
    """Rates, shape and correlation of a trace."""
    given = assumed or Assumed()
    trace = _watched(trace, given)
    window_s = max(trace.observation.resolution_s, WINDOW_S) if given.window_s is None else given.window_s
    at_once = together(trace, window_s)
    trace = merged(trace, window_s)
    size = given.group_nodes or at_once.typical or _given_groups(trace)
    notes = list(trace.notes)
    process_s = trace.observation.process_s
    if given.ranks_per_node is not None:
        process_s = trace.observation.node_s * given.ranks_per_node
    elif not process_s:
        process_s = trace.observation.node_s
        if any(event.kind == "process" for event in trace.events):
            notes.append(
                "how many processes a node has is not known: `process` is for one on each; give --ranks-per-node"
            )
    groups = -(-trace.observation.nodes // size) if size else 0  # as a campaign has them
    exposures = {
        "process": process_s,
        "node": trace.observation.node_s,
        "group": trace.observation.node_s * groups / trace.observation.nodes if size else 0.0,
        "system": trace.observation.seconds,
        PREEMPTION: float(trace.runs.seconds.sum()) if trace.runs is not None else trace.observation.seconds,
    }
    counts = {kind: sum(event.kind == kind for event in trace.events) for kind in KINDS}
    times = {kind: times_between(trace, kind) for kind in FAILURES}
    shapes = {kind: found for kind in FAILURES if (found := fit_shape([times[kind]])) is not None}
    # Jobs of everybody fail early for reasons of their own: machines have the shape of what strikes nodes.
    others = [kind for kind in FAILURES if not _by_runs(trace, kind)] if not trace.one_job else FAILURES
    shape = fit_shape([times[kind] for kind in others]) or fit_shape(list(times.values()))
    rates = {}
    for kind, exposure_s in exposures.items():
        own = shapes.get(kind, shape)
        spread = 1.0 if own is None or kind == PREEMPTION or _by_runs(trace, kind) else _spread(own)
        if exposure_s > 0 and kind in (*trace.tells, PREEMPTION):
            rates[kind] = rate(counts[kind], exposure_s, spread)
    return Fit(trace, rates, shape, shapes, at_once, size, counts[TIME_LIMIT], tuple(notes))


def _spread(shape: Shape) -> float:
    """The variance of counts over that of Poisson. Few failures cannot refuse exponential times: that there are bursts,
    as the most likely shape has them, is then taken for true all the same, or bounds would be too narrow.
    """
    return max(1.0, shape.dispersion) if shape.exponential else shape.dispersion


def _watched(trace: Trace, given: Assumed) -> Trace:
    """The trace with what the user says of the observation."""
    old = trace.observation
    seconds, nodes = given.seconds or old.seconds, given.nodes or old.nodes
    last = trace.events[-1].at_s if trace.events else 0.0
    if not seconds or not nodes:
        raise ValueError("for how long, and how many nodes: give --days and --nodes, or a header to the file")
    if seconds < last:
        raise ValueError(f"at least {last / _DAY_S:.6g} days: the last failure is then")
    if trace.runs is not None or (seconds == old.seconds and nodes == old.nodes and old.node_s):
        return trace
    return replace(trace, observation=replace(old, seconds=seconds, nodes=nodes, node_s=seconds * nodes))


def _given_groups(trace: Trace) -> int:
    """Nodes of a group, on the average, where the file has groups."""
    sizes = [len(event.nodes) for event in trace.events if event.kind == "group"]
    return max(2, round(sum(sizes) / len(sizes))) if sizes else 0


def times_between(trace: Trace, kind: str) -> Times:
    """Times between failures of one class.

    From one failure to the next; the last is censored, and the first, which began before watching did, is left out.
    Processes begin anew with each job, and so does everything in the history of one job: there, times are the runs
    themselves, in node-seconds, since a run on twice as many nodes is expected to fail in half the time. Times of 0,
    which the resolution of a file makes, are half of that.
    """
    least = (trace.observation.resolution_s or _RESOLUTION_S) / 2
    if _by_runs(trace, kind):
        assert trace.runs is not None
        runs, failed = trace.runs, trace.runs.ended == KINDS.index(kind)
        lengths = np.maximum(runs.seconds, least) * np.maximum(runs.nodes, 1)
        return Times(lengths[failed], lengths[~failed])
    at = np.array([event.at_s for event in trace.events if event.kind == kind])
    if not len(at):
        return Times(at, np.empty(0))
    left: Floats = np.array([trace.observation.seconds - at[-1]])
    return Times(np.maximum(np.diff(at), least), left[left > 0])


def _by_runs(trace: Trace, kind: str) -> bool:
    return trace.runs is not None and (trace.one_job or kind == "process")


def failures_toml(found: Fit, source: str) -> str:
    """The table ``[failures]`` of a machine file, with what each number is from."""
    lines = ["[failures]", f"# from {source!r}, {found.trace.format}; in brackets 95 % bounds"]
    for kind in FAILURES:
        if kind not in found.rates:
            lines.append(f"# {kind}: not to be told from this file")
            continue
        one = found.rates[kind]
        lines.append(f"{kind} = {_literal(one.mtbf_s)}  # {one.events} ({_days(one.low_s)} to {_days(one.high_s)})")
        if kind == "group":
            lines.append(f"group_nodes = {found.group_nodes}")
    lines.append(f"shape = {found.used_shape:.4g}{_shape_remark(found.shape)}")
    return "\n".join(lines) + "\n"


def _shape_remark(shape: Shape | None) -> str:
    if shape is None:
        return "  # too few failures to tell"
    words = "exponential is not refused; most likely " if shape.exponential else ""
    return f"  # {words}{shape.shape:.3g} ({shape.low:.3g} to {shape.high:.3g}), p = {shape.p_exponential:.2g}"


def _literal(seconds: float) -> str:
    return '"never"' if math.isinf(seconds) else f'"{seconds / _DAY_S:.6g} days"'


def _days(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds / _DAY_S:.4g} d"
