"""``deeppart explain``: what a restore would do, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json, printable, printable_lines
from deeppart.cli.options import complete_directory, directory_argument, sign_key_option, step_option
from deeppart.cli.output import console, record_json, to_json
from deeppart.comm import connect, finish
from deeppart.config import expand_directory, job_name, launch, node_name
from deeppart.errors import FormatError
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.inspect.node_files import lineage_on_nodes
from deeppart.part import Signing
from deeppart.plan.restart import explain as explain_step
from deeppart.plan.restart import explain_parts
from deeppart.storage.lineage import read_lineage

if TYPE_CHECKING:  # it imports torch, for which completion is not to wait
    from deeppart.offline.inspect.planning import RestorePlan

_TIMEOUT_S = 120.0


@click.command(short_help="Say what a restore would do.")
@directory_argument
@click.option(
    "--local",
    "local_dirs",
    metavar="DIR",
    multiple=True,
    shell_complete=complete_directory,
    help="Node-local directory. May be repeated.",
)
@sign_key_option
@click.option("--ranks", metavar="N", type=click.IntRange(min=1), help="Ranks of the job that would restore.")
@step_option("Only this step; by default the newest recoverable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(
    directory: Path,
    local_dirs: tuple[str, ...],
    signing: Signing | None,
    ranks: int | None,
    step: int | None,
    as_json: bool,
) -> int:
    """Say which step a restore would take, which rank would read which part from where, and why newer steps cannot
    be restored. Reads manifests, headers and indexes, no chunk; changes nothing.

    In one process, each --local DIR counts as a node. Started on the nodes themselves (srun --mpi=pmi2 or mpirun, one
    process per node), every process reads its own --local DIR, which may contain {node} and $VARIABLES. Exit code 1 if
    nothing can be recovered.
    """
    require_directory(directory)
    lineage = read_lineage(directory)
    if lineage is None:
        raise FormatError(
            "no job has checkpointed in this directory: it has no lineage record",
            where=str(directory.absolute()),
            todo="give the persistent_dir of a job",
        )
    if local_dirs:
        lineage = lineage_on_nodes(directory)
    launched = launch()
    if launched is not None and launched.size > 1:
        return _on_nodes(directory, lineage, local_dirs, step, signing, as_json)
    from deeppart.offline.inspect.planning import plan_here

    plan = plan_here(directory, lineage, [Path(text) for text in local_dirs], ranks, step, signing)
    return _tell(directory, plan, as_json)


def _on_nodes(
    directory: Path,
    lineage: str,
    local_dirs: tuple[str, ...],
    step: int | None,
    signing: Signing | None,
    as_json: bool,
) -> int:
    if len(local_dirs) > 1:
        raise click.UsageError("started on the nodes, every process has one --local DIR")
    comm = connect(None, _TIMEOUT_S)
    name = node_name()
    local = [expand_directory(text, node=name, rank=comm.rank, job=job_name()) for text in local_dirs]
    texts = finish(comm, comm.allgather(json.dumps([name, *map(str, local)]).encode()), "explain", _TIMEOUT_S)
    places = [json.loads(text) for text in texts]
    names = [place[0] for place in places]
    node_of = tuple(list(dict.fromkeys(names)).index(each) for each in names)
    leads = bool(local) and places.index(places[comm.rank]) == comm.rank
    from deeppart.offline.inspect.planning import plan_together

    plan = plan_together(comm, directory, lineage, local[0] if leads else None, node_of, _TIMEOUT_S, step, signing)
    return _tell(directory, plan, as_json) if comm.rank == 0 else GOOD if plan.candidate else NOT_GOOD


def _tell(directory: Path, plan: RestorePlan, as_json: bool) -> int:
    from deeppart.recovery import suspect_lines

    suspect = suspect_lines(directory, plan.candidate.attempt) if plan.candidate is not None else []
    if as_json:
        print_json({**_document(directory, plan), "suspect": suspect})
    else:
        _print(plan)
        for line in suspect:
            console().print(printable(line), style="yellow", soft_wrap=True)
    return GOOD if plan.candidate is not None else NOT_GOOD


def _print(plan: RestorePlan) -> None:
    out = console()
    chosen = -1 if plan.candidate is None else plan.candidate.attempt.step
    for number, reason in plan.outlook.rejected:
        if number > chosen:
            out.print(printable_lines(f"step {number} cannot be recovered: {reason}"), style="red", soft_wrap=True)
    if plan.candidate is None:
        out.print("no step can be recovered", style="bold red")
    else:
        out.print(printable(explain_step(plan.candidate, plan.reads)), style="bold", soft_wrap=True)
        for line in explain_parts(plan.candidate, plan.reads):
            out.print(printable(f"  {line}"), soft_wrap=True)
    for line in (*plan.outlook.notes, *plan.problems):
        out.print(printable(f"note: {line}"), soft_wrap=True)
    others = sorted({each.attempt.step for each in plan.outlook.candidates[1:]}, reverse=True)
    if others:
        out.print(f"could be recovered too: {', '.join(map(str, others))}")


def _document(directory: Path, plan: RestorePlan) -> dict[str, Any]:
    candidate = plan.candidate
    return {
        "directory": str(directory),
        "step": candidate.attempt.step if candidate else None,
        "attempt": to_json(candidate.attempt) if candidate else None,
        "parts": [
            {
                "part": read.part,
                "reader": read.reader,
                "readers": list(read.readers),
                "sources": [
                    {**record_json(source, without=("readers", "rebuild")), "readers": len(source.readers)}
                    for source in candidate.sources[read.part]
                ],
            }
            for read in plan.reads
        ]
        if candidate
        else [],
        "explanation": [explain_step(candidate, plan.reads), *explain_parts(candidate, plan.reads)]
        if candidate
        else [],
        "rejected": [{"step": step, "reason": reason} for step, reason in plan.outlook.rejected],
        "others": sorted({each.attempt.step for each in plan.outlook.candidates[1:]}, reverse=True),
        "problems": [*plan.outlook.notes, *plan.problems],
    }
