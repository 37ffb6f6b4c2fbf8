"""``deeppart-sim cluster``: jobs that share a cluster, by the policies of schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import click
import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import meant_todo, show_seconds

from ..cluster.applications import SHIPPED, Application, Archive, read_workload, restarts_s
from ..cluster.engine import Cluster, Outcome, run
from ..cluster.policies import POLICIES
from ..report.blocks import Result, Section, Table
from .options import MOST_RANKS, OUTPUT, Asked, command, given, no_effect, option, read_time
from .output import flat


@command(
    "Share a cluster among jobs, as schedulers do.",
    option("--trace", default=SHIPPED, metavar="FILE|DIR", help="Measurements and workloads."),
    option("--workload", default="workloads/workload-6", metavar="NAME", help="A workload, or a folder of them."),
    option("--policy", default="pollux", metavar="NAME,...", help=f"Of {', '.join(POLICIES)}."),
    option("--nodes", type=click.IntRange(1, 1024), default=16, help="Of the cluster."),
    option("--gpus", type=click.IntRange(1, 64), default=4, help="Of each node."),
    option("--interval", default="60s", metavar="TIME", help="From one decision to the next."),
    option("--restart", default="30s", metavar="TIME,...", help="Time that a restart with other GPUs takes."),
    option("--machine", metavar="FILE|PRESET",
           help="Instead of --restart: the machine whose figures say how long each training takes."),
    "restart-mode",
    option("--jobs", type=click.IntRange(1, MOST_RANKS), help="Only the first so many of each workload."),
    *OUTPUT,
)  # fmt: skip
def cluster(asked: Asked) -> Result:
    """How long jobs take on a cluster that they share, by policy: who gets how many GPUs is decided anew every so
    often, and a job whose GPUs change is restarted.

    With several restart times it shows what fast checkpoints are worth to a cluster.
    """
    nodes, gpus = asked.nodes, asked.gpus
    policies = _policies(asked.policy)
    archive = Archive(asked.trace)
    names = archive.workloads(asked.workload)
    known: dict[str, Application] = {}
    requests = {name: read_workload(archive, name, known)[: asked.jobs] for name in names}
    delays = _delays(asked, known)
    interval_s = read_time(asked.interval, "--interval")
    outcomes = []
    for delay, policy, name in product(delays, policies, names):
        asked.status.update(f"{policy}: {name}")
        shared = Cluster(nodes, gpus, interval_s, delay.__getitem__)
        chosen = POLICIES[policy](nodes, gpus, float(np.mean(list(delay.values()))))
        outcomes.append(Outcome(policy, name, dict(delay), run(shared, chosen, requests[name])))

    about = {"trace": archive.name, "nodes": nodes, "gpus_per_node": gpus, "interval_s": interval_s}
    document = {"format": "deeppart-sim-cluster", "version": 1} | about | {"outcomes": list(map(_document, outcomes))}
    words = [
        f"{nodes} nodes with {gpus} GPUs; {len(names)} workloads of {archive.name}, decisions every {asked.interval}"
    ]
    if asked.machine is not None:
        takes = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in sorted(delays[0].items()))
        words.append(f"to go on with other GPUs on {asked.machine}: {takes}")
    rows = [
        {"policy": each.policy, "workload": each.workload} | flat(job) | {"restart_s": each.restart_s[job.application]}
        for each in outcomes
        for job in each.jobs
    ]
    section = Section("Jobs that share a cluster", [*words, _table(policies, delays, outcomes)])
    return Result("Jobs that share a cluster", document, [section], rows)


def _document(outcome: Outcome) -> dict[str, Any]:
    jobs = [flat(job) | {"completion_s": job.completion_s} for job in outcome.jobs]
    about = {"policy": outcome.policy, "workload": outcome.workload, "restart_s": outcome.restart_s}
    return about | outcome.figures | {"jobs": jobs}


def _policies(text: str) -> list[str]:
    found = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in found:
        if name not in POLICIES:
            raise ConfigError(
                "there is no such policy", expected=", ".join(POLICIES), found=name, where="--policy",
                todo=meant_todo(name, POLICIES, "take one of these"),
            )  # fmt: skip
    return found


def _delays(asked: Asked, known: Mapping[str, Application]) -> list[dict[str, float]]:
    """Seconds of each application, for each restart time that is asked for."""
    if asked.machine is not None:
        if given("restart"):
            raise no_effect("--restart", "--machine says what a restart takes")
        return [restarts_s(asked.machine_of_job(), asked.gpus, known.values())]
    if asked.restart_mode is not None:
        raise no_effect("--restart-mode", "without --machine a restart takes what --restart says")
    words = [word.strip() for word in asked.restart.split(",")]
    times = [0.0 if word in ("0", "0s") else read_time(word, "--restart") for word in words]
    return [dict.fromkeys(known, seconds) for seconds in dict.fromkeys(times)]


def _table(policies: Sequence[str], delays: Sequence[Mapping[str, float]], outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for policy in policies:
        for delay in delays:
            of_it = [each for each in outcomes if each.policy == policy and each.restart_s == delay]
            means = {name: float(np.mean([each.figures[name] for each in of_it])) for name in of_it[0].figures}
            times = [f"{means[name]:,.0f} s" for name in ("mean_s", "median_s", "p90_s", "makespan_s")]
            least, most = min(delay.values()), max(delay.values())
            one = show_seconds(least) if most <= 1.01 * least else f"{show_seconds(least)} to {show_seconds(most)}"
            rows.append([policy, one, *times, f"{means['restarts']:.2f}", f"{means['stopped_s']:,.0f} s"])
    title = "from submission to end, of all jobs; the last two are means of a job"
    head = ["policy", "a restart", "mean", "median", "90 %", "makespan", "restarts", "starting"]
    return Table(title, head, rows, breaks=range(len(delays), len(rows), len(delays)))
