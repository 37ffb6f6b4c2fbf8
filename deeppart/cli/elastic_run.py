"""``deeppart elastic-run``: a job whose number of ranks changes, on one host or in Slurm's allocation."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from deeppart.cli.commands import REFUSED, error_document
from deeppart.cli.options import local_path
from deeppart.errors import ConfigError, DeeppartError
from deeppart.model import read_seconds
from deeppart.stopping import Signals

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    "elastic-run",
    short_help="Run a job whose number of ranks changes.",
    context_settings={"allow_interspersed_args": False},  # what comes after COMMAND is its own
)
@click.option("--min", "least", metavar="N", type=int, default=1, show_default=True, help="The fewest ranks.")
@click.option("--max", "most", metavar="N", type=int, required=True, help="The most ranks; it starts with so many.")
@click.option("--schedule", metavar="T:N,...", help="Ranks from a time on, since the beginning: 0:2,60s:4.")
@click.option("--size-file", metavar="FILE", type=_FILE, help="A file with the number of ranks, which you may change.")
@click.option(
    "--checkpoints",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    callback=local_path,
    help="The job's persistent_dir: a new step in it is progress. By default the setting persistent_dir. The ranks get "
    "it as $DEEPPART_PERSISTENT_DIR.",
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
@click.option("--json", "as_json", is_flag=True, help="Print these lines, and nothing else, on stdout.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def elastic_run(
    least: int, most: int, schedule: str | None, size_file: Path | None, log: Path | None, as_json: bool, **options: Any
) -> int:
    """Run COMMAND as the ranks of a job, with torchrun's agent, and change how many there are: by a schedule, or when
    the number in a file changes. The ranks are sent SIGTERM, make a checkpoint, exit with 143
    (deeppart.elastic.leave), and are started again. After a failure they go on from the newest checkpoint.

    The ranks are on this host; in an allocation of Slurm, outside of a step, on all its nodes, each with an agent that
    srun starts.

    Exit code 0: the ranks are done. 143: it was told to end, by SIGTERM or SIGUSR1, which the ranks get, too; or they
    were, by another way. 2: they failed again and again, or wrong usage.
    """
    with _noted() as before:  # torch takes a while
        return _with_events(least, most, schedule, size_file, log, as_json, {**options, "before": before})


@contextlib.contextmanager
def _noted() -> Iterator[Signals]:
    """Signals that are to end the job end with their exit code also before there is any; ignored ones stay so."""
    asking = (signal.SIGTERM, signal.SIGUSR1)
    noted = Signals([each for each in asking if signal.getsignal(each) is not signal.SIG_IGN], chained=False)
    noted.listen()
    try:
        yield noted
    finally:
        noted.put_back()


def _with_events(
    least: int, most: int, schedule: str | None, size_file: Path | None, log: Path | None, as_json: bool, options: Any
) -> int:
    """The job, with a line for each event."""
    from deeppart.elastic.running import Events, RankRange, WantedRanks

    allowed = RankRange(least, most)
    if size_file is not None and not size_file.parent.is_dir():
        raise ConfigError("there is no such directory", where=f"--size-file {size_file}", todo="make it first")
    wanted = WantedRanks(allowed, read_schedule(schedule, allowed) if schedule else (), size_file)
    if not as_json:
        events = Events(lambda line: click.echo(f"elastic-run: {line}", err=True), log)
        code = _run(wanted, allowed, events, options)
        events.emit("end", exit_code=code)
        return code
    with _stdout_for_events() as print_line:
        events = Events(None, log, print_line)
        try:
            code, error = _run(wanted, allowed, events, options), None
        except DeeppartError as caught:
            code, error = REFUSED, error_document(caught, REFUSED)
        events.emit("end", exit_code=code, error=error)
    return code


#: Of a schedule: a number of ranks, and the moment of the beginning.
_DIGITS, _NOTHING = re.compile(r"[0-9]{1,9}"), re.compile(r"0+(\.0*)?")


def read_schedule(text: str, allowed: Any) -> tuple[tuple[float, int], ...]:
    """``0:2,60s:4`` -> ((0.0, 2), (60.0, 4)): seconds since the beginning, and ranks from then on."""
    found: list[tuple[float, int]] = []
    for item in text.split(","):
        moment, separator, ranks = item.strip().partition(":")
        try:
            if not separator or not _DIGITS.fullmatch(ranks):
                raise ValueError("no number of ranks")
            seconds = 0.0 if _NOTHING.fullmatch(moment) else read_seconds(moment)
        except ValueError as error:
            raise ConfigError(
                "a schedule cannot be read", expected="TIME:RANKS,...: 0:2,60s:4", found=repr(item), where="--schedule"
            ) from error
        if found and seconds <= found[-1][0]:
            raise ConfigError("a schedule goes back in time", found=text, where="--schedule")
        found.append((seconds, allowed.checked(int(ranks), f"--schedule {item.strip()}")))
    return tuple(found)


def _run(wanted: Any, allowed: Any, events: Any, options: dict[str, Any]) -> int:
    """The job, where it is to run."""
    from deeppart.config import allocation
    from deeppart.elastic.launching import Launcher, LocalLauncher
    from deeppart.elastic.running import ElasticRun, Options
    from deeppart.elastic.srun import SrunLauncher

    command, grace_s = options["command"], options["grace"]
    given = allocation()
    launcher: Launcher = LocalLauncher(command, grace_s)
    if given is not None:
        launcher = SrunLauncher(command, grace_s, given, allowed.maximum)
    checkpoints = options["checkpoints"]
    if checkpoints is None:
        checkpoints = _persistent_dir()
    else:  # for scripts that name none: nothing would be saved there
        os.environ["DEEPPART_PERSISTENT_DIR"] = str(checkpoints)
    how = Options(checkpoints, options["failures"], options["fewer"], grace_s)
    return ElasticRun(how, wanted, allowed.minimum, launcher, events).run(lambda: options["before"].received)


def _persistent_dir() -> Path:
    """That of the job, by the settings that it reads, too."""
    from deeppart.config import Config, expand_directory, job_name, node_name

    return expand_directory(Config().persistent_dir, node=node_name(), rank=0, job=job_name())


@contextlib.contextmanager
def _stdout_for_events() -> Iterator[Callable[[str], object]]:
    """Prints lines on stdout; meanwhile what ranks print there goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield lambda line: os.write(kept, (line + "\n").encode())
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
