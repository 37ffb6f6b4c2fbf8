"""Failure rates and a shape from a trace, as a machine file has them, with bounds.

*Rates.* A count in a time T that was fixed before is Poisson if events come at a constant rate, with the bounds of F.
Garwood (Biometrika 28, 1936): chi2(a/2; 2 r) / (2 T) <= rate <= chi2(1 - a/2; 2 r + 2) / (2 T). Where gaps are not
exponential, the variance of counts is c^2 times Poisson's for long times, c being the gaps' standard deviation over
their mean (D. R. Cox, Renewal Theory, 1962, section 3.3): bounds are then those of r / c^2 events in T / c^2.

*Shape* of a Weibull distribution. Classes have one shape and each a scale of its own. To take the most likely scale
for each would make few failures look like more: the shape then comes out too large, by a fifth with eight of them. So
scales are integrated out, the logarithm of each with equal weight, which leaves, with d_c failures among the times t
of class c,

    l(k) = sum over c of  (d_c - 1) ln(k) - d_c ln(sum(t^k)) + k sum(ln t of failures)

(J. Kalbfleisch and D. Sprott, Journal of the Royal Statistical Society B 32, 1970). Bounds are where it is 1.92 below
its largest value; against k = 1, twice the difference tests whether times are exponential.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .record import FAILURES, KINDS, PREEMPTION, TIME_LIMIT, Event, Floats, Trace

#: Times that are equal, as far as a file without a resolution tells, are taken for half of this apart.
_RESOLUTION_S = 1.0
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the user says of the machine, where the file does not."""

    seconds: float | None = None  # how long it was watched
    nodes: int | None = None  # how many were watched
    ranks_per_node: int | None = None  # processes on each
    group_nodes: int | None = None  # nodes that may fail together
    window_s: float | None = None  # what counts as together


@dataclass(frozen=True, slots=True)
class Fit:
    """What a trace says of failures."""

    trace: Trace  # with failures of nodes put together
    rates: Mapping[str, Rate]  # class, or "preemption" -> of one process, node, group, of the system, of one job
    shape: Shape | None  # of all classes together; None if there were too few failures
    shapes: Mapping[str, Shape]  # the same class by class, where there were enough
    together: Together  # how often nodes fail together
    group_nodes: int  # nodes of a group
    time_limits: int  # runs that had had their time
    notes: tuple[str, ...]  # what was assumed

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


# --- nodes that fail together -----------------------------------------------------------------------------------------


#: Failures of nodes within this time are one, in seconds, unless the file's times are coarser.
WINDOW_S = 60.0


def merged(trace: Trace, window_s: float) -> Trace:
    """The trace with the failures of nodes that came within a window put together.

    Of several jobs that name the same node it is that node's failure, once. Different nodes are a group; more than half
    of all nodes are the system.
    """
    nodes = [event for event in trace.events if event.kind == "node"]
    others = [event for event in trace.events if event.kind != "node"]
    found = [_one(cluster, trace.observation.nodes) for cluster in _clusters(nodes, window_s)]
    return replace(trace, events=tuple(sorted([*others, *found], key=lambda event: event.at_s)))


def _clusters(events: Sequence[Event], window_s: float) -> Iterator[list[Event]]:
    cluster: list[Event] = []
    for event in events:
        if cluster and event.at_s - cluster[0].at_s > window_s:
            yield cluster
            cluster = []
        cluster.append(event)
    if cluster:
        yield cluster


def _one(cluster: list[Event], size: int) -> Event:
    """One event for all: which nodes, at least, have to have failed."""
    candidates: list[tuple[str, ...]] = []
    owner: dict[str, int] = {}  # name -> place of its candidate; no name is in two
    for event in cluster:
        known = min((owner[name] for name in event.nodes if name in owner), default=None)
        if known is None and candidates and not event.nodes:
            continue
        if known is None:
            owner |= dict.fromkeys(event.nodes, len(candidates))
            candidates.append(event.nodes)
            continue
        names = set(event.nodes)
        common = tuple(name for name in candidates[known] if name in names)
        for name in set(candidates[known]) - names:
            del owner[name]
        candidates[known] = common
    if len(candidates) == 1:
        return Event(cluster[0].at_s, "node", candidates[0])
    struck = tuple(sorted({names[0] for names in candidates if names}))
    kind = "system" if 2 * len(struck) > size > 2 else "group"
    return Event(cluster[0].at_s, kind, struck)


@dataclass(frozen=True, slots=True)
class Together:
    """How often nodes fail together."""

    window_s: float  # what counts as together
    failures: int  # of nodes, one by one, before they are put together
    sizes: dict[int, int]  # nodes at once -> how often
    by_chance: float  # so many groups would be expected of nodes that fail independently
    p_value: float  # the probability of as many groups as there were, or more, by chance

    @property
    def groups(self) -> int:
        """How often several nodes failed at once."""
        return sum(count for size, count in self.sizes.items() if size > 1)

    @property
    def correlated(self) -> bool:
        """True if that is more than chance: once in a thousand times at most."""
        return self.groups > 0 and self.p_value < 1e-3

    @property
    def typical(self) -> int:
        """Nodes of a group, on the average, at least 2; 0 where there was none."""
        counts = [(size, count) for size, count in self.sizes.items() if size > 1]
        total = sum(count for _, count in counts)
        return max(2, round(sum(size * count for size, count in counts) / total)) if total else 0


def together(trace: Trace, window_s: float) -> Together:
    """How often nodes of a trace fail together.

    If N failures came at random in a time T, windows of W seconds that begin with a failure and have another one in
    them would be about N (1 - exp(-N W / T)), Poisson.
    """
    failures = sum(event.kind == "node" for event in trace.events)
    sizes = Counter(max(1, len(event.nodes)) if event.kind != "node" else 1 for event in _struck(trace, window_s))
    seconds = trace.observation.seconds
    chance = failures * -math.expm1(-failures * window_s / seconds) if seconds else 0.0
    groups = sum(count for size, count in sizes.items() if size > 1)
    return Together(window_s, failures, dict(sorted(sizes.items())), chance, _at_least(groups, chance))


def _struck(trace: Trace, window_s: float) -> Iterable[Event]:
    before = {id(event) for event in trace.events}
    return (event for event in merged(trace, window_s).events if event.kind == "node" or id(event) not in before)


def _at_least(count: int, mean: float) -> float:
    """The probability that a Poisson variable is so large."""
    from scipy.special import pdtrc  # late: other commands need no scipy

    return 1.0 if count == 0 else float(pdtrc(count - 1, mean)) if mean > 0 else 0.0


# --- rates ------------------------------------------------------------------------------------------------------------

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate, as the mean time between events."""

    events: int
    exposure_s: float  # time in which they were counted, of all things that could have had one together
    mtbf_s: float  # the time between two of one thing; infinity if there was none
    low_s: float  # low_s, high_s: bounds of it, at the given confidence; high_s is infinity if there was none
    high_s: float


def rate(events: int, exposure_s: float, dispersion: float = 1.0, confidence: float = CONFIDENCE) -> Rate:
    """The rate at which something happens."""
    from scipy.special import gammaincinv

    tail, count, time_s = (1 - confidence) / 2, events / dispersion, exposure_s / dispersion
    # Half the chi-square quantile of 2 r degrees of freedom is the gamma quantile of shape r.
    most = float(gammaincinv(count + 1, 1 - tail)) / time_s
    least = float(gammaincinv(count, tail)) / time_s if events else 0.0
    return Rate(
        events, exposure_s, exposure_s / events if events else math.inf, 1 / most, 1 / least if least else math.inf
    )


# --- the shape --------------------------------------------------------------------------------------------------------

#: A shape is looked for between these.
_LEAST, _MOST = 0.02, 50.0
#: Fewer failures say nothing of a shape.
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Times between failures of one class."""

    failed: Floats  # that ended in a failure; above 0
    censored: Floats  # that did not


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape."""

    shape: float  # most likely; 1 is exponential, below, failures come in bursts
    low: float  # low, high: bounds of it
    high: float
    p_exponential: float  # the probability of a likelihood ratio such as this if times are exponential
    failures: int  # that it is from

    @property
    def exponential(self) -> bool:
        """True if the times do not speak against it: p of at least 0.05."""
        return self.p_exponential >= 0.05

    @property
    def dispersion(self) -> float:
        """Variance of the times over their mean squared; 1 for exponential ones."""
        first, second = math.lgamma(1 + 1 / self.shape), math.lgamma(1 + 2 / self.shape)
        return math.expm1(second - 2 * first)


def fit_shape(classes: Sequence[Times], confidence: float = CONFIDENCE) -> Shape | None:
    """The shape that all classes have in common; None with fewer than three failures."""
    from scipy.optimize import brentq, minimize_scalar
    from scipy.special import chdtrc, chdtri

    used = [times for times in classes if len(times.failed)]
    failures = sum(len(times.failed) for times in used)
    if failures < _FEWEST:
        return None
    if any(times.failed.min() <= 0 for times in used):
        raise ValueError("times to failure have to be above 0")
    likelihood = _Likelihood(used)
    best = minimize_scalar(
        lambda log_k: -likelihood(math.exp(log_k)), bounds=(math.log(_LEAST), math.log(_MOST)), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    shape, top = math.exp(float(best.x)), -float(best.fun)
    drop = float(chdtri(1, 1 - confidence)) / 2

    def below(log_k: float) -> float:
        return likelihood(math.exp(log_k)) - (top - drop)

    middle = math.log(shape)
    low = math.exp(brentq(below, math.log(_LEAST), middle)) if below(math.log(_LEAST)) < 0 else _LEAST
    high = math.exp(brentq(below, middle, math.log(_MOST))) if below(math.log(_MOST)) < 0 else _MOST
    ratio = max(0.0, 2 * (top - likelihood(1.0)))
    return Shape(shape, low, high, float(chdtrc(1, ratio)), failures)


class _Likelihood:
    """The logarithm of the likelihood of a shape, whatever the scales."""

    def __init__(self, classes: Sequence[Times]) -> None:
        # Relative to the mean, or powers would overflow; scales take that up.
        self._classes = []
        for times in classes:
            every = np.concatenate([times.failed, times.censored])
            mean = float(every.mean())
            logs = np.log(every[every > 0] / mean)
            self._classes.append((len(times.failed), logs, float(np.log(times.failed / mean).sum())))

    def __call__(self, shape: float) -> float:
        total = 0.0
        for count, logs, failed_logs in self._classes:
            powers = shape * logs
            largest = float(powers.max())
            log_sum = largest + math.log(float(np.exp(powers - largest).sum()))
            total += (count - 1) * math.log(shape) - count * log_sum + shape * failed_logs
        return total
