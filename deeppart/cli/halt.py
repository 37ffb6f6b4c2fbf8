"""``deeppart halt``: ask a running job to end after a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deeppart._times import timestamp
from deeppart.cli.options import directory_argument, read_moment
from deeppart.cli.output import command, count, line, moment
from deeppart.errors import CheckpointError
from deeppart.storage import Halt, Owner, PosixStore, read_owner


@dataclass(frozen=True, slots=True)
class Halting:
    """A request to end. Fields: docs/commands.md, halt."""

    directory: Path
    owner: Owner
    halt: Halt | None


def _lines(found: Halting) -> Iterator[Any]:
    who = found.owner.who
    if found.halt is None:
        yield line(f"{who} goes on")
        return
    when = f", before {moment(found.halt.before)} UTC" if found.halt.before else ""
    more = f", after {count(found.halt.after, 'more call')} of checkpoint()" if found.halt.after else ""
    yield line(f"{who} will make a last checkpoint{when}{more}, and end with exit code 0")


def _read_time(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else timestamp(read_moment(value))


@command("Ask a running job to end after a checkpoint.", _lines)
@directory_argument
@click.option("--after", metavar="N", type=click.IntRange(min=0), default=0, help="After N more calls.")
@click.option(
    "--before",
    metavar="TIME",
    callback=_read_time,
    help="End just in time: 2026-11-30T18:00, or from now on, such as 8h.",
)
@click.option("--cancel", is_flag=True, help="Take it back.")
def halt(directory: Path, after: int, before: str | None, cancel: bool) -> Halting:
    """Ask the job in DIR to end, at one of its next calls of deeppart.checkpoint(), which saves the state everywhere.

    All ranks exit with code 0, so that nothing starts them again; a later job in DIR is not concerned. The job looks
    every two seconds, and with every="auto" its ranks agree every five.
    """
    if after and before:  # which of the two would count is a guess
        raise click.UsageError("--after and --before exclude each other")
    owner = read_owner(directory)
    if owner is None or owner.running is False or not owner.run:
        raise CheckpointError(
            "no job is running in this directory",
            where=str(directory),
            todo="give the persistent_dir of a running job; while `deeppart run` starts its ranks again, try once more",
        )
    if cancel:
        Halt.remove(PosixStore(directory))
        return Halting(directory, owner, None)
    asked = Halt(owner.run, after, before)
    asked.write(PosixStore(directory))
    return Halting(directory, owner, asked)
