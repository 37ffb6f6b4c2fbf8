"""``deeppart-sim cluster``: jobs that share a cluster, by the policies of schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from deeppart.cli.commands import GOOD
from deeppart.errors import ConfigError
from deeppart.model.spelling import meant_todo
from deeppart.model.units import show_seconds

from ..cluster.applications import SHIPPED, Application, Archive, read_workload, restarts_s
from ..cluster.engine import Cluster, Outcome, mean_of, run
from ..cluster.policies import POLICIES, policy_of
from ..machine.files import read_machine
from .consoles import console, status_console, table
from .options import MOST_RANKS, print_json, read_time, write_csv
from .parameters import NewFile, given, no_effect
from .restart_mode import coming_back, restart_mode_option

_RESTART = "30s"
_FIGURES = ("mean_s", "median_s", "p90_s", "makespan_s", "restarts", "stopped_s")


@click.command(short_help="Share a cluster among jobs, as schedulers do.")
@click.option("--trace", default=SHIPPED, show_default=True, metavar="FILE|DIR", help="Measurements and workloads.")
@click.option(
    "--workload", default="workloads/workload-6", show_default=True, metavar="NAME", help="Of it, or a folder of them."
)
@click.option("--policy", default="pollux", show_default=True, metavar="NAME,...", help=f"Of {', '.join(POLICIES)}.")
@click.option("--nodes", type=click.IntRange(1, 1024), default=16, show_default=True, help="Of the cluster.")
@click.option("--gpus", type=click.IntRange(1, 64), default=4, show_default=True, help="Of each node.")
@click.option("--interval", default="60s", show_default=True, metavar="TIME", help="From one decision to the next.")
@click.option(
    "--restart", default=_RESTART, show_default=True, metavar="TIME,...", help="What it takes to go on with other GPUs."
)
@click.option(
    "--machine", metavar="FILE|PRESET", help="Instead: what a machine is known to take for it, with each training."
)
@restart_mode_option
@click.option("--jobs", type=click.IntRange(1, MOST_RANKS), help="Only the first so many of each workload.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--csv", "csv_path", type=NewFile(), metavar="FILE", help="Write every job as CSV.")
def cluster(
    trace: str,
    workload: str,
    policy: str,
    nodes: int,
    gpus: int,
    interval: str,
    restart: str,
    machine: str | None,
    restart_mode: str | None,
    jobs: int | None,
    as_json: bool,
    csv_path: Path | None,
) -> int:
    """How long jobs take on a cluster that they share, by policy: who gets how many GPUs is decided anew every so
    often, and a job whose GPUs change is restarted.

    With several restart times it shows what fast checkpoints are worth to a cluster.
    """
    policies = _policies(policy)
    archive = Archive(trace)
    names = archive.workloads(workload)
    known: dict[str, Application] = {}
    requests = {name: read_workload(archive, name, known)[:jobs] for name in names}
    delays = _delays(restart, machine, restart_mode, gpus, known)
    interval_s = read_time(interval, "--interval")
    outcomes = []
    with status_console().status("") as status:
        for delay in delays:
            for each in policies:
                for name in names:
                    status.update(f"{each}: {name}")
                    shared = Cluster(nodes, gpus, interval_s, delay.__getitem__)
                    chosen = policy_of(each, nodes, gpus, float(np.mean(list(delay.values()))))
                    outcomes.append(Outcome(each, name, dict(delay), run(shared, chosen, requests[name])))
    if csv_path is not None:
        write_csv(csv_path, [row for outcome in outcomes for row in _rows(outcome)])
    if as_json:
        print_json(document(archive.name, nodes, gpus, interval_s, outcomes))
        return GOOD
    out = console()
    out.print(f"{nodes} nodes with {gpus} GPUs; {len(names)} workloads of {archive.name}, decisions every {interval}")
    if machine is not None:
        shown = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in sorted(delays[0].items()))
        out.print(f"to go on with other GPUs on {machine}: {shown}", soft_wrap=True)
    out.print(_table(policies, delays, outcomes))
    return GOOD


def document(trace: str, nodes: int, gpus: int, interval_s: float, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "format": "deeppart-sim-cluster",
        "version": 1,
        "trace": trace,
        "nodes": nodes,
        "gpus_per_node": gpus,
        "interval_s": interval_s,
        "outcomes": [
            {"policy": each.policy, "workload": each.workload, "restart_s": each.restart_s}
            | {name: getattr(each, name) for name in _FIGURES}
            | {"jobs": [asdict(job) | {"completion_s": job.completion_s} for job in each.jobs]}
            for each in outcomes
        ],
    }


def _policies(text: str) -> list[str]:
    found = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in found:
        if name not in POLICIES:
            raise ConfigError(
                "there is no such policy", expected=", ".join(POLICIES), found=name, where="--policy",
                todo=meant_todo(name, POLICIES, "take one of these"),
            )  # fmt: skip
    return found


def _delays(
    restart: str, machine: str | None, mode: str | None, gpus: int, known: Mapping[str, Application]
) -> list[dict[str, float]]:
    """Seconds of each application, for each restart time that is asked for."""
    if machine is not None:
        if given("restart"):
            raise no_effect("--restart", "--machine says what a restart takes")
        return [restarts_s(coming_back(read_machine(machine), mode), gpus, known.values())]
    if mode is not None:
        raise no_effect("--restart-mode", "without --machine a restart takes what --restart says")
    words = [word.strip() for word in restart.split(",")]
    times = [0.0 if word in ("0", "0s") else read_time(word, "--restart") for word in words]
    return [dict.fromkeys(known, seconds) for seconds in dict.fromkeys(times)]


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    about = {"policy": outcome.policy, "workload": outcome.workload}
    return [about | asdict(job) | {"restart_s": outcome.restart_s[job.application]} for job in outcome.jobs]


def _table(policies: Sequence[str], delays: Sequence[Mapping[str, float]], outcomes: Sequence[Outcome]) -> Table:
    title = "from submission to end, of all jobs; the last two are means of a job"
    names = ["policy", "a restart", "mean", "median", "90 %", "makespan", "restarts", "starting"]
    found = table(title, names, left=1)
    for policy in policies:
        for delay in delays:
            of_it = [each for each in outcomes if each.policy == policy and each.restart_s == delay]
            means = {name: mean_of(of_it, name) for name in _FIGURES}
            times = [f"{means[name]:,.0f} s" for name in _FIGURES[:4]]
            least, most = min(delay.values()), max(delay.values())
            one = show_seconds(least) if most <= 1.01 * least else f"{show_seconds(least)} to {show_seconds(most)}"
            found.add_row(policy, one, *times, f"{means['restarts']:.2f}", f"{means['stopped_s']:,.0f} s")
        found.add_section()
    return found
