"""``deeppart slurm init``: a batch script for Slurm."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import click

from deeppart.config import refuse_url
from deeppart.errors import ConfigError

#: What all scripts begin with; ``{more}``: further options of the job.
_HEAD = """\
#!/bin/bash
# Written by: {written}
#SBATCH --job-name={name} --output={log} --open-mode=append
#SBATCH --nodes={nodes} --exclusive {more} --requeue
#SBATCH --time={time}

# scancel --batch --signal=USR1 JOB: a checkpoint, and the job is queued again
again= run=
trap 'again=1; [ -z "$run" ] || {ask}' USR1
export DEEPPART_PERSISTENT_DIR={directory}
local="${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/deeppart-$(id -un)-$SLURM_JOB_ID" # on each node's own disk
export DEEPPART_LOCAL_DIR="$local/{{node}}"
"""
_SECRET = """\
# By this secret the ranks know each other. No other user may write to the way to it.
export DEEPPART_SECRET_FILE=${{SECRET_DIR:-$HOME}}/.deeppart-secret
[ -s "$DEEPPART_SECRET_FILE" ] || (umask 077 && head -c 32 /dev/urandom >"$DEEPPART_SECRET_FILE") || exit 1
"""
_TAIL = """\
run=$!
[ -z "$again" ] || {ask}
while kill -0 $run 2>/dev/null; do wait $run; done # a signal ends a wait
wait $run; code=$?
# The training is done: its files on the nodes' disks are not needed any more.
[ $code -ne 0 ] || [ -n "$again" ] || {clean}
{again}
trap "" TERM # which Slurm sends to this shell as it queues the job again: it would count as a failure
scontrol requeue "$SLURM_JOB_ID"
"""
_IF_HALTED = '[ -n "$again" ] && [ $code -eq 0 ] || exit $code'
#: Again, as long as the job has not begun to use the directory.
_HALT = 'until deeppart halt "$DEEPPART_PERSISTENT_DIR" || ! kill -0 $run; do sleep 2; done'

#: Not for ever: a node may be down.
_CLEAN = 'timeout 60 srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" rm -rf "$local"'


class _Way(NamedTuple):
    """How ranks are started.

    Attributes:
        options: of the job.
        start: the lines that start them, in the background.
        ask: what asks the job for a last checkpoint.
        again: the lines that leave the script, unless the job is to be queued again.
    """

    options: str
    start: str
    ask: str = _HALT
    again: str = _IF_HALTED


_WAYS = {
    "run": _Way(
        "--no-kill",
        _SECRET
        + """\
# A failed rank or node is replaced within seconds; before the time is up all ranks make a checkpoint.
deeppart run --ranks {ranks}{spares} -- {command} &
""",
        "kill -USR1 $run",
        """\
# It has stopped, or too few nodes were left (75), or it was asked before it could know.
[ $code -eq 143 ] || [ $code -eq 75 ] || { [ -n "$again" ] && [ $code -ne 0 ]; } || exit $code""",
    ),
    "torchrun": _Way(
        "--ntasks-per-node=1 --signal=B:USR1@300",
        _SECRET
        + """\
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # or ranks that start again do not meet
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpu-bind=none --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_NNODES" --nproc-per-node={ranks} --max-restarts=3 \\
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:$((20000 + SLURM_JOB_ID % 10000))" \\
    {command} &
""",
    ),
    "mpi": _Way(
        "--ntasks-per-node={ranks} --signal=B:USR1@300",
        """\
export MPIR_CVAR_CH4_NETMOD=ofi # of MPICH: over UCX its start sends more than Slurm 22.05 reads
srun --mpi=pmi2 --cpu-bind=none --kill-on-bad-exit=1 {command} & # for another MPI: srun --mpi=list
""",
    ),
}


def _for_torchrun(command: tuple[str, ...]) -> tuple[str, ...]:
    """What torchrun is to start: it has a Python of its own, which takes a script or -m, but no options."""
    if Path(command[0]).name.startswith("python") and not "".join(command[1:2]).removeprefix("-m").startswith("-"):
        return command[1:]
    return command if command[0].endswith(".py") else ("--no-python", *command)


@click.group("slurm", short_help="Write a batch script for Slurm.")
def slurm() -> None:
    """Slurm."""


@slurm.command(
    "init", short_help="Write a batch script for Slurm.", context_settings={"allow_interspersed_args": False}
)
@click.option(
    "--dir", "directory", metavar="DIR", required=True, help="The persistent_dir: on the parallel file system."
)
@click.option("--nodes", metavar="N|N-M", default="1", show_default=True, help="How many; or the fewest and the most.")
@click.option("--ranks", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Ranks on each node.")
@click.option("--spares", metavar="N", type=click.IntRange(0), default=0, help="Nodes that wait to replace another.")
@click.option("--gpus", metavar="N", type=click.IntRange(1), help="GPUs of each node.")
@click.option("--time", metavar="TIME", default="24:00:00", show_default=True, help="The time limit of one start.")
@click.option("--name", default="train", show_default=True, help="Of the job, and its log.")
@click.option(
    "--torchrun",
    "by",
    flag_value="torchrun",
    default="run",
    help="Start the ranks by torchrun instead of deeppart run.",
)
@click.option("--mpi", "by", flag_value="mpi", help="Start the ranks by srun, over MPI.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def init(
    directory: str,
    nodes: str,
    ranks: int,
    spares: int,
    gpus: int | None,
    time: str,
    name: str,
    by: str,
    command: tuple[str, ...],
) -> None:
    """Print a batch script for a training, such as ``python train.py``, that goes on over time limits and failures.

    Before the time is up, or when asked to by a signal, the job makes a checkpoint and is queued again. The training
    calls deeppart.restore(state) before it trains, and deeppart.checkpoint(state, step) as it goes.
    """
    refuse_url("--dir", Path(directory))
    if any(not each.isprintable() for each in (directory, name, time, *command)):
        raise ConfigError("a line break, or what is like it, in the script", found=repr((directory, name, *command)))
    if spares and by != "run":
        raise ConfigError("spare nodes are those of deeppart run", where=f"--spares {spares} --{by}")
    if by == "torchrun":
        command = _for_torchrun(command)
    way = _WAYS[by]
    more = f"{way.options} --gpus-per-node={gpus}" if gpus else way.options
    text = (
        (_HEAD + way.start + _TAIL)
        .replace("{more}", more)
        .format(
            ask=way.ask,
            again=way.again,
            clean=_CLEAN,
            command=shlex.join(command),
            directory=shlex.quote(directory),
            log=shlex.quote(f"{name}-%j.log"),
            name=shlex.quote(name),
            nodes=nodes,
            ranks=ranks,
            spares=f" --spares {spares}" if spares else "",
            time=time,
            written=shlex.join(["deeppart", *sys.argv[1:]]),
        )
    )
    click.echo(text, nl=False)
