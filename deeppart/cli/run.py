"""``deeppart run``: a job that is kept alive."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from deeppart._times import timestamp
from deeppart.errors import ConfigError
from deeppart.model import read_seconds


@click.command(
    "run",
    short_help="Run a job, and start it again in seconds when a rank fails.",
    context_settings={"allow_interspersed_args": False},  # what comes after COMMAND is its own
)
@click.option("--ranks", metavar="N", type=click.IntRange(1), required=True, help="How many ranks, on this host.")
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
    failures: int,
    preload: str,
    grace: float,
    hang: float | None,
    log: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND, such as ``python train.py``, as the ranks of a job on this host. When a rank fails, the others are
    killed, and all are started again within seconds: a process that has imported torch, and what else the script
    imports, forks them. The script is as for torchrun: it calls deeppart.restore(state) before it trains.

    SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks.

    Exit code 0: the ranks are done. 143: they were asked to stop, and have (deeppart.elastic.leave). 1: they failed
    again and again without a new step; starting the job again will not help. 2: wrong usage.
    """
    from deeppart.agent import Command, Job, JobOptions

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

    return Job(Command.of(command), JobOptions(ranks, failures, modules, grace, hang), tell).run()


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
