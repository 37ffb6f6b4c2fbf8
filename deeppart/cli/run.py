"""``deeppart run``: a job that is kept alive."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from deeppart._times import timestamp
from deeppart.config import secret_of_ranks
from deeppart.errors import ConfigError
from deeppart.model import read_seconds


@click.command(
    "run",
    short_help="Run a job, and start it again in seconds when a rank or a node fails.",
    context_settings={"allow_interspersed_args": False},  # what comes after COMMAND is its own
)
@click.option("--ranks", metavar="N", type=click.IntRange(1), required=True, help="How many ranks, on each node.")
@click.option(
    "--nodes",
    metavar="HOST[:PORT],...",
    help="The nodes, on each of which this command is run; in a step of Slurm those of the step, otherwise this host.",
)
@click.option("--node", metavar="I", type=click.IntRange(0), help="Which of them this is, from 0; by default by name.")
@click.option("--spares", metavar="N", type=click.IntRange(0), default=0, help="Nodes that wait to replace another.")
@click.option(
    "--min", "least", metavar="N", type=click.IntRange(1), help="The fewest nodes, if not all but the spares."
)
@click.option(
    "--failures",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Failures in a row, without a new step, after which the ranks are started again.",
)
@click.option(
    "--preload",
    metavar="auto|none|MODULES",
    default="auto",
    show_default=True,
    help="What is imported once for all ranks: what the script imports, nothing, or these modules (a,b.c).",
)
@click.option(
    "--grace",
    metavar="S",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="Seconds that ranks have for a checkpoint after a signal.",
)
@click.option(
    "--hang",
    metavar="auto|S|off",
    default="off",
    show_default=True,
    callback=lambda context, option, value: _read_hang(value),
    help="Seconds without a step, or ten times a usual step, after which ranks hang and are started again; auto: 60.",
)
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a line of JSON for each event.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int,
    nodes: str | None,
    node: int | None,
    spares: int,
    least: int | None,
    failures: int,
    preload: str,
    grace: float,
    hang: float | None,
    log: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND, such as ``python train.py``, as the ranks of a job. When a rank fails or a node is lost, the other
    ranks are killed, and all are started again within seconds: a process that has imported torch, and what else the
    script imports, forks them. The script is as for torchrun: it calls deeppart.restore(state) before it trains.

    For several nodes, run this once on each: srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 deeppart run ...

    SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks.

    Exit code 0: the ranks are done. 143: they were asked to stop, and have (deeppart.elastic.leave). 75: too few nodes
    are left; start the job again. 1: they failed again and again without a new step; starting the job again will not
    help. 2: wrong usage.
    """
    from deeppart.agent import Agent, Command, Credentials, JobOptions

    modules = {"auto": None, "none": ()}.get(preload, tuple(preload.split(",")))
    began_s = time.monotonic()
    if log is not None:
        _append(log, "")

    def tell(event: str, **values: Any) -> None:
        passed_s = time.monotonic() - began_s
        known = {name: value for name, value in values.items() if value is not None}
        words = [str(value) if name == "text" else f"{name.replace('_', ' ')} {value}" for name, value in known.items()]
        with suppress(OSError):  # a closed terminal does not end the job
            click.echo(f"deeppart run: {passed_s:.1f} s: {event}{': ' if words else ''}{', '.join(words)}", err=True)
        if log is not None:
            record = {"time": timestamp(time.time()), "passed_s": round(passed_s, 3), "event": event, **known}
            with suppress(ConfigError):  # nor does a full file system
                _append(log, json.dumps(record) + "\n")

    hosts, own = _nodes(nodes, node)
    wanted = len(hosts) - spares
    if not 1 <= (least or 1) <= wanted:
        raise ConfigError(
            "too few nodes", expected="at least one, or --min, besides the spares",
            found=f"{len(hosts)} nodes, {spares} of them spare", where=f"--spares {spares} --min {least or wanted}",
        )  # fmt: skip
    options = JobOptions(ranks, hosts, spares, least or wanted, failures, modules, grace, hang)
    job = f"{os.environ.get('SLURM_JOB_ID', '')} on {','.join(hosts)}"
    credentials = Credentials(job, secret_of_ranks())
    return Agent(Command.of(command), options, tell, own, socket.gethostname(), credentials).run()


#: Where agents listen by default; under Slurm, so that jobs differ, the number of the job is added.
_PORT, _PORTS = 20_000, 10_000


def _nodes(listed: str | None, node: int | None) -> tuple[tuple[str, ...], int]:
    """The nodes of the job, each with a port, and which of them this is."""
    step = os.environ.get("SLURM_STEP_NODELIST", "")
    if listed is not None:
        hosts = [each.strip() for each in listed.split(",")]
    elif step and os.environ.get("SLURM_STEP_NUM_NODES") != "1":
        tasks, count = os.environ.get("SLURM_STEP_NUM_TASKS"), os.environ.get("SLURM_STEP_NUM_NODES")
        if tasks != count:
            raise ConfigError(
                "deeppart run is run once on each node", expected=f"{count} tasks", found=f"{tasks} on {count} nodes",
                todo="srun --ntasks-per-node=1; it starts the ranks",
            )  # fmt: skip
        shown = subprocess.run(["scontrol", "show", "hostnames", step], check=True, capture_output=True, text=True)
        hosts, node = shown.stdout.split(), int(os.environ["SLURM_NODEID"]) if node is None else node
    else:
        return ("127.0.0.1:0",), 0
    port = _PORT + int(os.environ.get("SLURM_JOB_ID") or 0) % _PORTS
    hosts = [each if re.fullmatch(r".+:[0-9]+", each) else f"{each}:{port}" for each in hosts]
    if len(set(hosts)) < len(hosts) or not all(each.partition(":")[0] for each in hosts):
        raise ConfigError("a node has no name, or is listed twice", found=", ".join(hosts), where="--nodes")
    if node is None:
        name = socket.gethostname()
        found = [at for at, each in enumerate(hosts) if name.split(".")[0] == each.partition(":")[0].split(".")[0]]
        if len(found) != 1:
            raise ConfigError(
                "it is not known which node this is", expected=f"{name} in the list", found=", ".join(hosts),
                where="--nodes", todo="say so with --node, from 0",
            )  # fmt: skip
        node = found[0]
    if node >= len(hosts):
        raise ConfigError("there is no such node", expected=f"0 to {len(hosts) - 1}", found=str(node), where="--node")
    return tuple(hosts), node


def _read_hang(text: str) -> float | None:
    if text in ("auto", "off"):
        return 60.0 if text == "auto" else None
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else read_seconds(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: auto, off, or {error}") from error


def _append(log: Path, text: str) -> None:
    try:
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError("the log cannot be written", found=str(error.strerror), where=f"--log {log}") from error
