"""``deeppart run``: a job that is kept alive."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from deeppart._times import timestamp
from deeppart.cli.options import local_path, read_moment
from deeppart.config import allocation, node_name, secret_of_ranks
from deeppart.errors import ConfigError
from deeppart.model import read_seconds, show_seconds


@click.command(
    "run",
    short_help="Run a job, and start it again in seconds when a rank or a node fails.",
    context_settings={"allow_interspersed_args": False},  # what comes after COMMAND is its own
)
@click.option("--ranks", metavar="N", type=click.IntRange(1), required=True, help="The most ranks on each node.")
@click.option("--min", "least", metavar="N", type=click.IntRange(1), help="The fewest ranks, if not all of them.")
@click.option(
    "--size-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=local_path,
    help="A file with the number of ranks, which you may change.",
)
@click.option(
    "--nodes",
    metavar="HOST[:PORT],...",
    help="The nodes, on each of which this command is run; under Slurm those of the job, otherwise this host.",
)
@click.option("--node", metavar="I", type=click.IntRange(0), help="Which of them this is, from 0; by default by name.")
@click.option("--spares", metavar="N", type=click.IntRange(0), default=0, help="Nodes that wait to replace another.")
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
    "--until",
    metavar="auto|TIME|off",
    default="auto",
    show_default=True,
    callback=lambda context, option, value: _read_end(value),
    help="When the time of the job is up, such as 2026-11-30T18:00 or 8h: before, ranks get SIGUSR1, for a last "
    "checkpoint; auto: as Slurm says.",
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
    callback=local_path,
    help="Append a line of JSON for each event.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int,
    least: int | None,
    size_file: Path | None,
    nodes: str | None,
    node: int | None,
    spares: int,
    failures: int,
    preload: str,
    grace: float,
    until: float | None,
    hang: float | None,
    log: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND, such as ``python train.py``, as the ranks of a job. When a rank fails or a node is lost, the other
    ranks are killed, and all are started again within seconds: a process that has imported torch, and what else the
    script imports, forks them. The script is as for torchrun: it calls deeppart.restore(state) before it trains.

    In a batch script of Slurm the ranks are on all nodes of the job. Elsewhere, run this once on each of --nodes.

    By --size-file the number of ranks changes: they exit with 143 at their next checkpoint, and the new number is
    started.

    SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks. After a SIGTERM, SIGUSR1 or SIGUSR2 for
    which the script has no handler, the next deeppart.checkpoint() saves the state at all levels, and ends the job.

    Exit code 0: the ranks are done. 143: they were asked to stop, and have. 75: too few nodes are left; start the job
    again. 1: they failed again and again without a new step; starting the job again will not help. 2: wrong usage.
    """
    from deeppart.agent import (
        Agent,
        Command,
        Credentials,
        JobOptions,
        WantedRanks,
        end_of_job,
        run_on_all_nodes,
    )

    modules = {"auto": None, "none": ()}.get(preload, tuple(preload.split(",")))
    began_s = time.monotonic()
    if log is not None:
        _append(log, "")

    def tell(event: str, **values: Any) -> None:
        passed_s = time.monotonic() - began_s
        known = {name: value for name, value in values.items() if value is not None}
        words = [_described(name, value) for name, value in known.items()]
        with suppress(OSError):  # a closed terminal does not end the job
            click.echo(f"deeppart run: {passed_s:.1f} s: {event}{': ' if words else ''}{', '.join(words)}", err=True)
        if log is not None:
            record = {"time": timestamp(time.time()), "passed_s": round(passed_s, 3), "event": event, **known}
            with suppress(ConfigError):  # nor does a full file system
                _append(log, json.dumps(record) + "\n")

    hosts, own = _nodes(nodes, node)
    most = (len(hosts) - spares) * ranks
    if not 1 <= (least or 1) <= most:
        raise ConfigError(
            "no room for the fewest ranks", expected="one, or --min, on the nodes that are not spare",
            found=f"{len(hosts)} nodes, {spares} of them spare, with {ranks} ranks each",
            where=f"--spares {spares} --min {least or 1}",
        )  # fmt: skip
    least = least or (most if size_file is None else 1)
    wanted = None if size_file is None else WantedRanks(least, most, size_file)
    end_s = end_of_job() if until is None else until
    options = JobOptions(ranks, hosts, spares, least, failures, modules, grace, hang, end_s=end_s)
    runs = Command.of(command)
    if own is not None:
        runs.check()
    # Not the command itself, which may have a password: an agent that is refused learns what job this one belongs to.
    digest = hashlib.sha256(json.dumps(runs.arguments).encode()).hexdigest()[:8]
    job = f"{os.environ.get('SLURM_JOB_ID', '')} on {','.join(hosts)} with command {digest}"
    credentials = Credentials(job, secret_of_ranks())
    if own is None:
        at = sys.argv.index("run") + 1
        end = "off" if math.isinf(end_s) else datetime.fromtimestamp(end_s).astimezone().isoformat()
        words = [sys.executable, "-m", "deeppart", *sys.argv[1:at], "--nodes", ",".join(hosts), "--until", end]
        words += sys.argv[at:]
        return run_on_all_nodes(words, options, credentials)
    return Agent(runs, options, tell, own, node_name(), credentials, wanted).run()


#: Where agents listen by default; under Slurm, so that jobs differ, the number of the job is added.
_PORT, _PORTS = 20_000, 10_000


def _nodes(listed: str | None, node: int | None) -> tuple[tuple[str, ...], int | None]:
    """The nodes of the job, each with a port, and which of them this is; None in a batch script, which starts them."""
    from deeppart.agent import addresses_of

    given, step = allocation(), os.environ.get("SLURM_STEP_NODELIST", "")
    in_step = bool(step) and os.environ.get("SLURM_STEP_NUM_NODES") != "1"
    if in_step:
        tasks, count = os.environ.get("SLURM_STEP_NUM_TASKS"), os.environ.get("SLURM_STEP_NUM_NODES")
        if tasks != count:
            raise ConfigError(
                "deeppart run is run once on each node", expected=f"{count} tasks", found=f"{tasks} on {count} nodes",
                todo="srun --ntasks-per-node=1; it starts the ranks",
            )  # fmt: skip
        node = int(os.environ["SLURM_NODEID"]) if node is None else node
    if listed is not None:
        hosts = [each.strip() for each in listed.split(",")]
    elif in_step or given is not None:
        hosts = addresses_of(step if given is None else given.nodes)
    else:
        return ("127.0.0.1:0",), 0
    port = _PORT + int(os.environ.get("SLURM_JOB_ID") or 0) % _PORTS
    hosts = [each if re.fullmatch(r".+:[0-9]+", each) else f"{each}:{port + at}" for at, each in enumerate(hosts)]
    names = [each.rpartition(":")[0] for each in hosts]
    if len(set(hosts)) < len(hosts) or "" in names:
        raise ConfigError("a node has no name, or is listed twice", found=", ".join(hosts), where="--nodes")
    if not all(0 < int(each.rpartition(":")[2]) < 1 << 16 for each in hosts):
        raise ConfigError("no such port", expected="1 to 65535", found=", ".join(hosts), where="--nodes")
    if given is not None and listed is None:
        return tuple(hosts), None
    if node is None:
        name = socket.gethostname()
        found = [at for at, each in enumerate(names) if name.split(".")[0] == each.split(".")[0]]
        if len(found) != 1:
            raise ConfigError(
                "it is not known which node this is", expected=f"{name} in the list", found=", ".join(hosts),
                where="--nodes", todo="say so with --node, from 0",
            )  # fmt: skip
        node = found[0]
    if node >= len(hosts):
        raise ConfigError("there is no such node", expected=f"0 to {len(hosts) - 1}", found=str(node), where="--node")
    return tuple(hosts), node


def _read_end(text: str) -> float | None:
    """A time, in seconds since 1970; infinite for "off", None for "auto"."""
    return {"auto": None, "off": math.inf}[text] if text in ("auto", "off") else read_moment(text)


def _described(name: str, value: Any) -> str:
    """``rank 3``, ``killed by SIGKILL``, ``exit code 1``, ``restore 1.2 s``."""
    from deeppart.agent import exit_text

    if name == "exit_code":
        return exit_text(value)
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')} {show_seconds(value)}"
    if name == "text":
        return str(value)
    return f"{name.replace('_', ' ')} {' '.join(value) if isinstance(value, list) else value}"


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
