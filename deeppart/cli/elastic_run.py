"""``deeppart elastic-run``: a job on one host whose number of ranks changes."""

from __future__ import annotations

import os
from pathlib import Path

import click

from deeppart.errors import ConfigError

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    "elastic-run",
    short_help="Run a job whose number of ranks changes.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--min", "least", metavar="N", type=int, default=1, show_default=True, help="The fewest ranks.")
@click.option("--max", "most", metavar="N", type=int, required=True, help="The most ranks; it starts with so many.")
@click.option("--schedule", metavar="T:N,...", help="Ranks from a time on, since the beginning: 0:2,60s:4.")
@click.option("--size-file", metavar="FILE", type=_FILE, help="A file with the number of ranks, which you may change.")
@click.option(
    "--checkpoints",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The job's persistent_dir: a new step in it is progress. The ranks get it as $DEEPPART_PERSISTENT_DIR, "
    "which is the default.",
)
@click.option(
    "--failures",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Failures in a row, without progress, after which it starts again.",
)
@click.option("--fewer", is_flag=True, help="After a failure go on with one rank less, until the number changes.")
@click.option(
    "--grace",
    metavar="S",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="Seconds that ranks have for a checkpoint.",
)
@click.option("--log", metavar="FILE", type=_FILE, help="Write a line of JSON for whatever happens.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def elastic_run(
    least: int,
    most: int,
    schedule: str | None,
    size_file: Path | None,
    checkpoints: Path | None,
    failures: int,
    fewer: bool,
    grace: float,
    log: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND as the ranks of a job on this host, with torchrun's agent, and change how many there are: by a
    schedule, or when the number in a file changes. The ranks are sent SIGTERM, make a checkpoint, exit with 143
    (deeppart.elastic.leave), and are started again. After a failure they go on from the newest checkpoint.

    Exit code 0: the ranks are done. 143: it was told to end, by SIGTERM or SIGUSR1, which the ranks get, too; or they
    were, by another way. 2: they failed again and again, or wrong usage.
    """
    from deeppart.elastic.running import ElasticRun, Options  # torch
    from deeppart.elastic.schedule import Range, Wanted, read_schedule

    allowed = Range(least, most)
    if size_file is not None and not size_file.parent.is_dir():
        raise ConfigError("there is no such directory", where=f"--size-file {size_file}", todo="make it first")
    wanted = Wanted(allowed, read_schedule(schedule, allowed) if schedule else (), size_file)
    if checkpoints is None and (variable := os.environ.get("DEEPPART_PERSISTENT_DIR")):
        checkpoints = Path(variable)
    elif checkpoints is not None:  # for scripts that name none: else nothing would be saved there
        os.environ["DEEPPART_PERSISTENT_DIR"] = str(checkpoints)
    options = Options(command, checkpoints, failures, fewer, grace, log)
    return ElasticRun(options, wanted, least, lambda line: click.echo(f"elastic-run: {line}", err=True)).run()
