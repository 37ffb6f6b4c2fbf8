"""What it takes a job to go on with other GPUs, by the times that were measured on a machine."""

from __future__ import annotations

from collections.abc import Iterable

from deeppart.model import Level

from ..campaign.comeback import pieces_s
from ..machine.record import Machine
from ..machine.ways import PIECES
from ..timing.restores import restore_s
from ..timing.stages import Job, Protection, times_of
from ..workload.states import read_state
from .applications import Application

#: GPUs of the job whose restart is timed: about the mean of the published workloads.
_RANKS = 8


def restarts_s(machine: Machine, per_node: int, applications: Iterable[Application]) -> dict[str, float]:
    """Application -> seconds from the call that saves until it trains again.

    It waits until its checkpoint is complete on the file system, where any nodes can read it; then it pays what the
    machine's way to come back costs a job that stops by itself and whose nodes are ready; then it restores.

    Example:
        >>> from deeppart_simulator.cluster.applications import read_application
        >>> from deeppart_simulator.cluster.restarting import restarts_s
        >>> from deeppart_simulator.cluster.traces.archive import Archive
        >>> from deeppart_simulator.machine.files import read_machine
        >>> machine = read_machine("summit")
        >>> found = restarts_s(machine, 4, [read_application(Archive(), "bert")])
        >>> machine.restart.relaunch < found["bert"] < 2 * machine.restart.relaunch  # most of it is to start processes
        True
    """
    return {each.name: _seconds(machine, per_node, each) for each in applications}


def _seconds(machine: Machine, per_node: int, application: Application) -> float:
    state = read_state(application.settings.state)
    job = Job(state, machine, _RANKS, per_node, protection=Protection(local=True, partner=False))
    shares = job.shares()
    saved_s = times_of(job, shares).complete()[Level.PERSISTENT]
    # As after a failed process, which no node has to be replaced for, and which nobody has to notice.
    pieces = pieces_s(machine.restart, _RANKS, {"process"})
    started_s = sum(seconds for piece, seconds in pieces.items() if piece != PIECES[0])
    return saved_s + started_s + restore_s(job, shares, {Level.PERSISTENT: job.nodes})
