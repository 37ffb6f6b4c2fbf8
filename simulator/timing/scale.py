"""Scaling: checkpoints of the same state on several numbers of ranks, for each strategy.

The efficiency of N ranks is the time on one rank / (N * the time on N). The speed-up is relative to ``torch.save`` on
rank 0 of the same number of ranks: one rank writes everything, uncompressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeppart.errors import ConfigError
from deeppart.model import meant_todo
from deeppart.partition import STRATEGIES

from ..workload.holding import Shares
from .stages import Job, Times, times_of

#: The strategy to which speed-ups are relative.
REFERENCE = "rank0"


@dataclass(frozen=True, slots=True)
class Point:
    """One checkpoint of a study."""

    ranks: int  # ranks, nodes, strategy, compression: the case
    nodes: int
    strategy: str
    compression: str
    stages: dict[str, float]  # stage -> seconds of the slowest rank or node
    blocked_s: float  # training waits for this long; the rest is in the background
    complete_s: dict[str, float]  # level -> seconds until it is complete, with overlapping stages
    serial_s: float  # seconds of all stages one after another
    blocked_speedup: float  # blocked_speedup, serial_speedup: relative to uncompressed rank0 on as many ranks
    serial_speedup: float
    #: blocked_efficiency, serial_efficiency: relative to one rank; None if the state does not fit on one
    blocked_efficiency: float | None
    serial_efficiency: float | None
    written_bytes: int  # parts of all ranks, after encoding
    files: int  # created on the file system, without the manifest
    largest_bytes: int  # largest share, before encoding
    imbalance: float  # largest cost of a share / mean cost; 1 is perfect
    split_leaves: int  # leaves in more than one share
    spans: int  # most tensors, or pieces of tensors, in a share


def study(job: Job, ranks: Sequence[int], strategies: Sequence[str]) -> list[Point]:
    """Simulate all strategies on all numbers of ranks, in ascending order."""
    for name in strategies:
        if name not in STRATEGIES:
            raise ConfigError(
                f"{name!r} is not known",
                expected="one or more of " + ", ".join(STRATEGIES),
                found=name,
                where="--strategy",
                todo=meant_todo(name, STRATEGIES, "take one of these"),
            )
    alone = {name: _measure(job, 1, name)[0] for name in strategies} if job.state.layout.fits(1) else {}
    points = []
    for count in sorted(set(ranks)):
        reference, by_one = _measure(replace(job, compression="none"), count, REFERENCE)
        for name in strategies:
            times, shares = _measure(job, count, name, by_one if name == REFERENCE else None)
            points.append(_point(job, count, name, times, reference, alone.get(name), shares))
    return points


def _measure(job: Job, ranks: int, strategy: str, shares: Shares | None = None) -> tuple[Times, Shares]:
    this = replace(job, ranks=ranks, strategy=strategy)
    nodes, protection = this.nodes, this.protection
    if protection.parity_group > nodes:  # like the library: one group of all nodes, or none
        group = nodes if nodes > protection.parity_tolerate else 0
        this = replace(this, protection=replace(protection, parity_group=group))
    shares = this.shares() if shares is None else shares
    return times_of(this, shares), shares


def _point(
    job: Job, ranks: int, strategy: str, times: Times, reference: Times, one: Times | None, shares: Shares
) -> Point:
    cost = shares.nbytes + job.machine.memory.kappa_bytes * shares.spans
    return Point(
        ranks=ranks,
        nodes=-(-ranks // job.ranks_per_node),
        strategy=strategy,
        compression=job.compression,
        stages=times.stages(),
        blocked_s=times.blocked_s,
        complete_s=times.complete(),
        serial_s=times.serial_s(),
        blocked_speedup=reference.blocked_s / times.blocked_s,
        serial_speedup=reference.serial_s() / times.serial_s(),
        blocked_efficiency=one.blocked_s / (ranks * times.blocked_s) if one else None,
        serial_efficiency=one.serial_s() / (ranks * times.serial_s()) if one else None,
        written_bytes=round(float(times.encoded.sum())),
        files=times.files,
        largest_bytes=int(shares.nbytes.max()),
        imbalance=float(cost.max() / cost.mean()) if cost.any() else 1.0,
        split_leaves=shares.split,
        spans=times.spans,
    )
