"""How fast chunks are encoded and decoded within checkpoints.

A codec that is timed in a loop of its own is up to 1.8 times as fast: within a checkpoint its chunks come from memory
that another core has just written, others write and read back at the same time, and cores may share what they compute
with. So its rates are taken to be those with which the model takes as long as compressed checkpoints do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from deeppart.model import Level

from ..machine.record import Machine
from ..timing.restores import restore_s
from ..timing.stages import Job, Protection, times_of
from ..workload.states import read_state

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
    """A compressed checkpoint of float32, and its restore from the node, by medians of the slowest rank.

    Attributes:
        ranks: of the node.
        share_bytes: of each, before encoding.
        share_tensors: of each.
        local_s: from the end of the call until it is on the node, while it goes to the file system, too.
        longer_s: by how much longer a restore takes than one of the same state that was stored raw.
        commit_s: from the node until it is committed on the file system.
    """

    ranks: int
    share_bytes: int
    share_tensors: int
    local_s: float
    longer_s: float
    commit_s: float = 0.0


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
