"""Jobs on machines that are easy to work with by hand."""

from __future__ import annotations

from dataclasses import replace

from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.machine.record import Failures, Group, Local, Machine, Memory, Network, Persistent, Restart
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

DAY = 86400.0


#: A job whose checkpoints block for a known time and do nothing in the background that takes any.
QUIET = Machine(
    name="quiet",
    nodes=64,
    ranks_per_node=1,
    interference=0.0,
    memory=Memory(copy=1e9, node_copy=1e9, tensor=0.0, call=0.0, leaf=0.0, compare=0.0, restore=0.0, restored_leaf=0.0),
    local=Local(write=1e15, read=1e15, file=0.0, tensor=0.0),
    network=Network(bandwidth=1e15, latency=0.0, parity=1e15),
    persistent=Persistent(
        write=1e15, read=1e15, node_write=1e15, node_read=1e15, file=0.0, tensor=0.0, leaf=0.0, files=1e15
    ),
    restart=Restart(detect=0.0, relaunch=0.0, replace=0.0, repair=0.0),
)


def planned(
    failures: Failures, blocked_s: float = 60.0, ranks: int = 4, protection: Protection | None = None
) -> Planned:
    state = read_state(f"tensors-{ranks}x{round(blocked_s)}GB")
    machine = replace(QUIET, failures=failures)
    return Planned(Job(state, machine, ranks, 1, protection=protection or Protection()))


def busy(**changes: object) -> tuple[Planned, Cadences]:
    """Everything happens: all classes of failures, background work that takes time, other jobs on the file system."""
    pairs = {"group": Group(nodes=2, mtbf=40 * DAY)}
    failures = Failures(process=40 * DAY, node=20 * DAY, system=30 * DAY, shape=0.8, groups=pairs)
    machine = replace(
        QUIET,
        interference=0.05,
        failures=failures,
        restart=Restart(detect=30, relaunch=60, replace=30, repair=2 * DAY),
        local=replace(QUIET.local, write=2e9),
        network=replace(QUIET.network, bandwidth=5e9),
        persistent=replace(QUIET.persistent, write=1e9, node_write=0.5e9, others=0.3),
    )
    this = Planned(Job(read_state("tensors-8x10GB"), machine, 8, 1))
    defaults: dict[str, object] = {"spares": 1, "elastic": True}
    return this, Cadences(900.0, {"local": 1, "partner": 2, "persistent": 4}, 40 * DAY, **(defaults | changes))
