"""From measured checkpoints to the numbers of a machine.

What a stage takes as such, for each byte and for each tensor is fitted by least squares of the relative error, with no
part below zero. A codec that is timed in a loop of its own is up to 1.8 times as fast as within a checkpoint, so its
rates are those with which the model takes as long as compressed checkpoints do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from deeppart.model import Level

from ..machine.record import Machine, Network
from ..timing.restores import restore_s
from ..timing.stages import SMALL_LEAF_BYTES, Job, Protection, times_of
from ..workload.states import read_state


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured checkpoint, by medians over its rounds."""

    ranks: int
    share_bytes: int  # of each
    share_tensors: int  # of each
    seconds: Mapping[str, float]  # name -> median of the slowest rank


def after(measured: Mapping[str, Sequence[float]], end: str, begin: str) -> float:
    """Median of the seconds from one to the other."""
    return median(one - other for one, other in zip(measured[end], measured[begin], strict=True))


def fit(samples: Sequence[Sample], what: str, *, tensors: bool = True) -> tuple[float, float, float]:
    """(constant in s, s per byte of a share, s per tensor of a share) of a stage.

    On a machine that is busy otherwise the fit may leave nothing for bytes, as if they moved in no time. Then all of
    the time of the largest share is put down to its bytes: a rate that was reached for sure.
    """
    rows = [(1.0, each.share_bytes, each.share_tensors * tensors) for each in samples]
    fitted = _least_squares([each.seconds[what] for each in samples], rows)
    if fitted[1] > 0:
        return fitted
    largest = max(samples, key=lambda each: each.share_bytes)
    per_byte = largest.seconds[what] / largest.share_bytes
    rest = [max(0.0, each.seconds[what] - per_byte * each.share_bytes) for each in samples]
    constant, _, per_tensor = _least_squares(rest, [(1.0, 0.0, count) for _, _, count in rows])
    return constant, per_byte, per_tensor


def fit_planning(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """(constant in s, s per tensor of a share, s besides per tensor above SMALL_LEAF_BYTES) of planning.

    Nothing for bytes, nor of one rank alone for large tensors, which it compares with nobody's: the model has no such
    parts, and what was left to them would be lost.
    """
    rows = [
        (
            1.0,
            each.share_tensors,
            each.share_tensors * (each.ranks > 1 and each.share_bytes > SMALL_LEAF_BYTES * each.share_tensors),
        )
        for each in samples
    ]
    return _least_squares([each.seconds["plan"] for each in samples], rows)


def bytes_and_tensors(samples: Sequence[Sample], what: str, least: float = 0.0) -> tuple[float, float]:
    """(s per byte of a share, s per tensor of a share) of what takes no time as such."""
    rows = [(0.0, each.share_bytes, each.share_tensors) for each in samples]
    known_s = [least * each.share_bytes for each in samples]
    _, per_byte, per_tensor = _least_squares([each.seconds[what] for each in samples], rows, known_s)
    return least + per_byte, per_tensor


def constant_and_tensors(samples: Sequence[Sample], what: str) -> tuple[float, float]:
    """(constant in s, s per tensor of a share) of what takes no time for bytes."""
    rows = [(1.0, 0.0, each.share_tensors) for each in samples]
    constant, _, per_tensor = _least_squares([each.seconds[what] for each in samples], rows)
    return constant, per_tensor


def bytes_beside(samples: Sequence[Sample], what: str, known_s: Sequence[float]) -> float:
    """s per byte of a share of a stage whose other parts are known; at least a quarter of all that was measured."""
    weighed = [
        (each.share_bytes / each.seconds[what], known / each.seconds[what])
        for each, known in zip(samples, known_s, strict=True)
    ]
    fitted = sum(nbytes * (1 - known) for nbytes, known in weighed) / sum(nbytes**2 for nbytes, _ in weighed)
    largest = max(samples, key=lambda each: each.share_bytes)
    return max(fitted, largest.seconds[what] / largest.share_bytes / 4)


def rate(seconds_per_byte: float, ranks: int = 1) -> float:
    """Bytes per second of all ranks together."""
    return ranks / seconds_per_byte if seconds_per_byte > 0 else math.inf


def _least_squares(
    seconds: Sequence[float], rows: Sequence[tuple[float, float, float]], known_s: Sequence[float] = ()
) -> tuple[float, float, float]:
    """The parts of each column."""
    from scipy.optimize import nnls

    target = np.maximum(np.array(seconds), 1e-9)
    left = 1.0 - np.array(known_s) / target if known_s else np.ones(len(target))
    columns = np.array(rows)
    scale = np.maximum(columns.max(axis=0), 1e-300)
    found, _ = nnls(columns / scale / target[:, None], left)
    constant, per_byte, per_tensor = (found / scale).tolist()
    return constant, per_byte, per_tensor


# --- lazy calls -------------------------------------------------------------------------------------------------------


#: So fast a copy in the background is taken to be at least, as a share of an eager one: below, something else was slow.
_LEAST_LATE = 0.1


def guards_s(
    late: Sequence[Mapping[str, Sequence[float]]], samples: Sequence[Sample], shares: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Seconds of a lazy call as such, and for each tensor, beside planning and beside what a copy takes as such: the
    model has these apart.
    """
    constant, per_tensor, per_large = fit_planning(samples)
    known_s = constant + fit(samples, "capture")[0]
    guards = []
    for each, (nbytes, tensors) in zip(late, shares, strict=True):
        guarding_s = median(each["blocked"]) - known_s - (per_tensor + per_large) * tensors
        if guarding_s > 0:
            guards.append(Sample(samples[0].ranks, nbytes, tensors, {"guards": guarding_s}))
    if not guards:
        return 0.0, 0.0
    as_such_s, per_tensor = constant_and_tensors(guards, "guards")
    if per_tensor > 0 and len(guards) > 1:
        return as_such_s, per_tensor
    # The call with few tensors was as slow, or as quick as planning, by chance.
    most = max(guards, key=lambda each: each.share_tensors)
    return 0.0, most.seconds["guards"] / most.share_tensors


def late_copies(
    late: Sequence[Mapping[str, Sequence[float]]], samples: Sequence[Sample], shares: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """(How fast copies in the background are, as a share of how fast eager ones are; seconds for each tensor besides).

    What the lazy checkpoints take longer from the end of the call until they are on the node is the copy. Its bytes are
    taken to be no faster than in an eager one.
    """
    constant, per_byte, per_tensor = fit(samples, "local")
    _, copied, copied_tensor = fit(samples, "capture")
    measured = []
    for each, (nbytes, tensors) in zip(late, shares, strict=True):
        rest_s = constant + per_byte * nbytes + (per_tensor + copied_tensor) * tensors
        if (copy_s := after(each, "local", "blocked") - rest_s) > 0:
            measured.append(Sample(samples[0].ranks, nbytes, tensors, {"copy": copy_s}))
    if not measured:
        return 1.0, 0.0
    of_bytes, of_tensor = bytes_and_tensors(measured, "copy", copied)
    return max(_LEAST_LATE, copied / of_bytes), of_tensor


# --- the network ------------------------------------------------------------------------------------------------------


#: What the node of a machine file without a network is given: ranks of one node never use it.
_UNKNOWN = Network(bandwidth=1e10, latency=2e-6)


def between_ranks(pieces: Mapping[str, Any], samples: Sequence[Sample], crowding: float, file_s: float) -> Network:
    """The network of a host."""
    found = pieces["network"]
    # Encoding by itself is ten times as fast as what parity takes with digests and messages.
    parity = min(_UNKNOWN.parity, pieces["parity"])
    if found is None:
        return replace(_UNKNOWN, parity=parity)
    network = Network(bandwidth=found["bandwidth"], latency=found["latency"], parity=parity)
    if not samples:
        return network
    if copied := [each for each in samples if each.seconds["partner"] > 0]:
        as_such_s = [file_s + network.latency] * len(copied)
        network = replace(network, copies=rate(bytes_beside(copied, "partner", as_such_s) / crowding))
    constant, per_byte, _ = fit(samples, "parity", tensors=False)
    exchange = max(0.0, constant - file_s)
    largest = max(samples, key=lambda each: each.share_bytes)
    rebuilding = max(largest.seconds["rebuild"] - exchange, largest.seconds["rebuild"] / 4)
    if rebuilding > 0:  # on a busy machine a restore with a lost node may seem to be as fast as one without
        network = replace(network, rebuild=rate(rebuilding / largest.share_bytes / crowding))
    return replace(network, parity=rate(per_byte / crowding), exchange=exchange)


# --- codecs -----------------------------------------------------------------------------------------------------------


#: A codec is taken to be so many times as fast as in the loop, at least and at most: beyond, something else was
#: measured.
_LEAST, _MOST = 0.25, 2.0
#: Where a codec twice as fast changes less, what takes longest is something else, and nothing is learned of it.
_HIDDEN = 0.97
_HALVINGS = 40
#: A flush has kept up where the file system alone would take less than this share of it.
_KEPT_UP = 0.95
#: A commit takes no longer than so many files; what seems to is something else.
_MOST_COMMITS = 3


@dataclass(frozen=True, slots=True)
class Encoded:
    """A compressed checkpoint of float32, and its restore from the node, by medians of the slowest rank."""

    ranks: int  # of the node
    share_bytes: int  # of each, before encoding
    share_tensors: int  # of each
    local_s: float  # from the end of the call until it is on the node, while it goes to the file system, too
    longer_s: float  # by how much longer a restore takes than one of the same state that was stored raw
    commit_s: float = 0.0  # from the node until it is committed on the file system


def as_encoded(machine: Machine, encoded: Encoded) -> Machine:
    """The machine with codecs as fast as they were within a checkpoint, and with the time of its commit."""
    if "float32" not in machine.codecs:
        return machine
    tensors = encoded.share_tensors * encoded.ranks
    state = read_state(f"tensors-{tensors}x{encoded.share_bytes // encoded.share_tensors // 4 * 4}")
    raw = Job(state, machine, encoded.ranks, encoded.ranks, protection=Protection(partner=False))
    shares, parts = raw.shares(), {str(Level.LOCAL): 1}
    raw_s = restore_s(raw, shares, parts)

    def job(encode: float = 1.0, decode: float = 1.0) -> Job:
        return replace(raw, machine=_faster(machine, encode, decode), compression="tensor")

    def local_s(factor: float) -> float:
        times = times_of(job(encode=factor), shares)
        return times.complete()[Level.LOCAL] - times.blocked_s

    def longer_s(factor: float) -> float:
        return restore_s(job(decode=factor), shares, parts) - raw_s

    encode = _factor(local_s, encoded.local_s)
    found = _faster(machine, encode, _factor(longer_s, encoded.longer_s))
    times = times_of(job(encode=encode), shares)
    if float(times.persistent.max()) > _KEPT_UP * float(times.flushed.max()):
        return found  # the flush has waited for the file system
    commit_s = min(max(0.0, encoded.commit_s), _MOST_COMMITS * machine.persistent.file)
    return replace(found, persistent=replace(found.persistent, commit=commit_s))


def _faster(machine: Machine, encode: float, decode: float) -> Machine:
    codecs = {
        dtype: replace(each, encode=each.encode * encode, decode=each.decode * decode)
        for dtype, each in machine.codecs.items()
    }
    return replace(machine, codecs=MappingProxyType(codecs))


def _factor(seconds: Callable[[float], float], measured_s: float) -> float:
    """How many times as fast a codec is, by how long something takes then, which is never longer with a faster one."""
    if measured_s <= seconds(_MOST):
        return 1.0 if seconds(_MOST) >= _HIDDEN * seconds(1.0) else _MOST
    slow, fast = math.log(_LEAST), math.log(_MOST)
    for _ in range(_HALVINGS):
        middle = (slow + fast) / 2
        slow, fast = (middle, fast) if seconds(math.exp(middle)) > measured_s else (slow, middle)
    return math.exp(slow)
