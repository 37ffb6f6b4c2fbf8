"""What is to be known beside a result: where the model does not quite fit the machine that was asked about."""

from __future__ import annotations

from ..machine.record import Machine
from ..timing.stages import Job


def what_if(machine: Machine, nodes: int, spares: int = 0) -> list[str]:
    """A sentence if the machine has fewer nodes than that: the result is hypothetical."""
    if nodes + spares <= machine.nodes:
        return []
    needed = f"{nodes:,} nodes" + (f" and {spares:,} spare ones" if spares else "")
    return [
        f"a what-if: {needed}, and {machine.name} has {machine.nodes:,}; its file system, its network and each node's "
        "failures are taken as they are"
    ]


def bursts(job: Job) -> list[str]:
    """A sentence if failures do not come as the advice takes them to come."""
    shape = job.machine.failures.shape
    if shape == 1:
        return []
    words = "in bursts" if shape < 1 else "more evenly than at random"
    return [
        f"failures of {job.machine.name} come {words} (Weibull, shape {shape:g}); this advice takes them to be "
        "exponential with the same means: `deeppart-sim campaign` with the same options draws them as they come"
    ]
