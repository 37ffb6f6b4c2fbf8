"""``deeppart explain``: what a restore would do, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from deeppart import offline
from deeppart.cli.commands import printable_lines
from deeppart.cli.options import directory_argument, local_option, sign_key_option, step_option
from deeppart.cli.output import Shown, command, line
from deeppart.comm import connect, finish
from deeppart.config import expand_directory, job_name, launch, node_name
from deeppart.part import Signing

_TIMEOUT_S = 120.0


def _plan_on_nodes(directory: Path, local_dirs: tuple[Path, ...], step: int | None, signing: Signing | None) -> Shown:
    """Plan together with the processes on the other nodes; one of them prints the plan."""
    if len(local_dirs) > 1:
        raise click.UsageError("started on the nodes, every process has one --local DIR")
    comm = connect(None, _TIMEOUT_S)
    name = node_name()
    local = [expand_directory(str(each), node=name, rank=comm.rank, job=job_name()) for each in local_dirs]
    texts = finish(comm, comm.allgather(json.dumps([name, *map(str, local)]).encode()), "explain", _TIMEOUT_S)
    places = [json.loads(text) for text in texts]
    names = [place[0] for place in places]
    node_of = tuple(list(dict.fromkeys(names)).index(each) for each in names)
    leads, mine = places.index(places[comm.rank]) == comm.rank, local[0] if local else None
    plan = offline.plan_together(comm, directory, mine, node_of, _TIMEOUT_S, step, signing, leads=leads)
    return Shown(plan, _lines if comm.rank == 0 else None)


def _lines(plan: offline.RestorePlan) -> Iterator[Any]:
    for each in plan.rejected:
        if plan.step is None or each.step > plan.step:
            yield Text(printable_lines(f"step {each.step} cannot be recovered: {each.reason}"), "red")
    if plan.step is None:
        yield line("no step can be recovered", "bold red")
    for number, text in enumerate(plan.explanation):
        yield line(f"  {text}") if number else line(text, "bold")
    for text in plan.problems:
        yield line(f"note: {text}")
    if plan.others:
        yield line(f"could be recovered too: {', '.join(map(str, plan.others))}")
    for text in plan.suspect:
        yield line(text, "yellow")


@command("Say what a restore would do.")
@directory_argument
@local_option("to restore from")
@sign_key_option
@click.option("--ranks", metavar="N", type=click.IntRange(min=1), help="Ranks of the job that would restore.")
@step_option("Only this step; by default the newest recoverable.")
def explain(
    directory: Path, local_dirs: tuple[Path, ...], signing: Signing | None, ranks: int | None, step: int | None
) -> Shown:
    """Say which step a restore would take, which rank would read which part from where, and why newer steps cannot
    be restored. Reads manifests, headers and indexes, no chunk; changes nothing.

    In one process, each --local DIR counts as a node. Started on the nodes themselves (srun --mpi=pmi2 or mpirun, one
    process per node), every process reads its own --local DIR, which may contain {node} and $VARIABLES. Exit code 1 if
    nothing can be recovered.
    """
    launched = launch()
    if launched is None or launched.size == 1:
        return Shown(offline.plan_here(directory, local_dirs, ranks, step, signing), _lines)
    return _plan_on_nodes(directory, local_dirs, step, signing)
