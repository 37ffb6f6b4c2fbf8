"""A small trace with a known model: one training that scales well, and one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from deeppart_simulator.cluster.applications import Application, Archive, read_application
from deeppart_simulator.cluster.engine import Request

from deeppart.elastic.goodput import Throughput

MODELS = {
    "scales": Throughput(0.05, 0.004, 0.02, 0.0002, 0.01, 0.0001, 2.0),
    "stays": Throughput(0.01, 0.001, 0.4, 0.01, 0.2, 0.005, 1.0),
}
#: Squared norm and variance of gradients, and epochs of so many steps.
NOISE, EPOCHS, STEPS = (1.0, 8.0), 5, 300.0
LOCAL, BATCHES = (8, 16, 32, 64), (32, 128, 512)


def write_trace(folder: Path, jobs: Sequence[tuple[str, float, str, int, int]] = ()) -> Archive:
    """The trace of both trainings, on 4 nodes with 2 GPUs, and one workload."""
    for name, model in MODELS.items():
        traces = folder / "traces" / name
        traces.mkdir(parents=True)
        placements = [
            each for nodes in (1, 2, 3, 4) for each in product((1, 2), repeat=nodes) if list(each) == sorted(each)
        ]
        rows = ["placement,local_bsz,step_time,sync_time"]
        for placement, local in product(placements, LOCAL):
            step_s = float(model.step_s(len(placement), sum(placement), local))
            rows.append(f"{''.join(map(str, placement))},{local},{step_s},{step_s - float(model.accumulated_s(local))}")
        (traces / "placements.csv").write_text("\n".join(rows) + "\n")
        rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
        for gpus, local in product((8, 16), LOCAL):
            step_s = float(model.step_s(gpus, gpus, local))
            rows.append(f"{gpus},{gpus},{local},{step_s},{step_s - float(model.accumulated_s(local))}")
        (traces / "scalability.csv").write_text("\n".join(rows) + "\n")
        sqr, var = NOISE
        for batch in BATCHES:
            gain = (sqr + var) / (sqr + var * BATCHES[0] / batch)
            rows = ["progress,iteration,metric,grad_sqr,grad_var"]
            rows += [f"{STEPS * epoch},{STEPS * epoch / gain},0.5,{sqr},{var}" for epoch in range(1, EPOCHS + 1)]
            (traces / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
    workloads = folder / "workloads"
    workloads.mkdir()
    rows = [",".join(map(str, job)) for job in (jobs or [("a", 0, "scales", 2, 64)])]
    (workloads / "toy.csv").write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]) + "\n")
    return Archive(folder)


def application(folder: Path, name: str = "scales") -> Application:
    """One of the two."""
    return read_application(write_trace(folder), name)


def request(app: Application, name: str = "a", at_s: float = 0.0, gpus: int = 2, batch: int = 64) -> Request:
    """A job of it."""
    return Request(name, at_s, app, gpus, batch)
