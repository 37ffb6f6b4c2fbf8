"""Common parts of the commands: options, the job that they describe, and the output of results."""

from __future__ import annotations

import csv
import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from deeppart.cli import commands
from deeppart.errors import ConfigError
from deeppart.model.units import read_rate
from deeppart.plan.interval import FLUSH_SHARE

from ..machine.files import read_machine
from ..machine.record import Machine
from ..measure.start import Directories
from ..timing.stages import COMPRESSIONS, FILES, Job, Protection
from ..workload.external import read_external
from ..workload.states import State, read_state

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STATE, DEFAULT_MACHINE, DEFAULT_RANKS = "bert-large+adam", "frontier", 512
#: What goes into a file or a pipe is never cut or wrapped.
_UNLIMITED_COLUMNS = 10_000


@dataclass(frozen=True)
class Common:
    """The options that every command takes.

    Attributes:
        state, source, machine: texts as given.
        seed: of everything that is random.
        as_json: true to print one JSON document.
        csv_path, report_path, png_path: files to write, or None.
    """

    state: str
    source: Path | None
    machine: str
    seed: int
    as_json: bool
    csv_path: Path | None
    report_path: Path | None
    png_path: Path | None

    def read_state(self) -> State:
        """The state that --state and --from describe.

        Raises:
            ConfigError: impossible.
        """
        if self.source is None:
            return read_state(self.state)
        text = "" if self.state == DEFAULT_STATE else self.state
        return read_external(self.source, text)

    def read_machine(self) -> Machine:
        """The machine.

        Raises:
            ConfigError: impossible.
        """
        return read_machine(self.machine)


def common_options(function: F) -> F:
    """The options that every command takes, as one argument ``common``."""

    @functools.wraps(function)
    def wrapped(
        state: str,
        source: Path | None,
        machine: str,
        seed: int,
        as_json: bool,
        csv_path: Path | None,
        report_path: Path | None,
        png_path: Path | None,
        **rest: Any,
    ) -> Any:
        common = Common(state, source, machine, seed, as_json, csv_path, report_path, png_path)
        return function(common, **rest)

    path = click.Path(path_type=Path)
    decorators = (
        click.option(
            "--state",
            default=DEFAULT_STATE,
            show_default=True,
            metavar="MODEL[:DTYPE][+OPTIMIZER][@LAYOUT]",
            help="State of the job; `deeppart-sim states` lists the models.",
        ),
        click.option(
            "--from",
            "source",
            type=path,
            metavar="DIR|FILE.py[:FUNCTION]",
            help="A checkpoint, or a Python file with a function that builds a model on the meta device; then --state "
            "has only +OPTIMIZER and @LAYOUT.",
        ),
        click.option(
            "--machine",
            default=DEFAULT_MACHINE,
            show_default=True,
            metavar="FILE|PRESET",
            help="Machine of the job; `deeppart-sim machines` lists the presets.",
        ),
        click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of random numbers."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option("--csv", "csv_path", type=path, metavar="FILE", help="Write the table as CSV."),
        click.option("--report", "report_path", type=path, metavar="FILE", help="Write a page for a browser."),
        click.option("--png", "png_path", type=path, metavar="FILE", help="Draw the result."),
    )
    for decorator in reversed(decorators):
        wrapped = decorator(wrapped)
    return wrapped  # type: ignore[return-value]


def measuring_options(function: F) -> F:
    """The directories for the real checkpoints that a command measures, as one argument ``directories``."""

    @functools.wraps(function)
    def wrapped(common: Common, local_dir: Path | None, persistent_dir: Path | None, **rest: Any) -> Any:
        memory, temporary = Path("/dev/shm"), Path(tempfile.gettempdir())
        local = local_dir or (memory if memory.is_dir() else temporary)
        return function(common, directories=Directories(local, persistent_dir or temporary), **rest)

    path = click.Path(path_type=Path, exists=True)
    for name, text in (
        ("--persistent-dir", "On the file system.  [default: the temporary directory]"),
        ("--local-dir", "On the node's own storage.  [default: /dev/shm]"),
    ):
        wrapped = click.option(name, type=path, help=text)(wrapped)
    return wrapped  # type: ignore[return-value]


def ranks_option(function: F) -> F:
    """The size of one job."""
    option = click.option(
        "--ranks", type=click.IntRange(min=1), default=DEFAULT_RANKS, show_default=True, help="Number of ranks."
    )
    return option(function)


def job_options(function: F) -> F:
    """Options that describe how the job checkpoints."""
    decorators = (
        click.option(
            "--ranks-per-node", type=click.IntRange(min=1), help="Ranks on each node; the machine's if left out."
        ),
        click.option("--compression", default="none", type=click.Choice(COMPRESSIONS), show_default=True),
        click.option("--capture", default="eager", type=click.Choice(("eager", "lazy")), show_default=True),
        click.option("--partner/--no-partner", default=True, help="Copies on another node; on if left out."),
        click.option(
            "--parity", metavar="NODES[/LOST]", help="Parity groups of NODES nodes, of which LOST may be lost."
        ),
        click.option("--local/--no-local", default=True, help="Use the nodes' own storage; on if left out."),
        click.option(
            "--files", default="rank", type=click.Choice(FILES), show_default=True, help="On the file system."
        ),
        click.option("--flush-bandwidth", metavar="RATE", help="Most bytes per second of a node to the file system."),
        click.option(
            "--flush-share",
            "--drain-share",
            type=click.FloatRange(min=0, max=1, min_open=True),
            default=FLUSH_SHARE,
            show_default=True,
            help="Share of the time that the job may be writing there, where no --flush-bandwidth is the limit.",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def make_job(common: Common, ranks: int, options: Mapping[str, Any]) -> Job:
    """The job that the options describe.

    Raises:
        ConfigError: impossible.
    """
    machine = common.read_machine()
    width = options.get("ranks_per_node") or machine.ranks_per_node
    limit = options.get("flush_bandwidth")
    flush = math.inf if limit is None else read_quantity(read_rate, limit, "--flush-bandwidth")
    local = bool(options.get("local", True))
    group, tolerate = read_parity(options.get("parity"))
    protection = Protection(local, local and bool(options.get("partner", True)), group if local else 0, tolerate)
    job = Job(
        state=common.read_state(),
        machine=machine,
        ranks=ranks,
        ranks_per_node=width,
        compression=options.get("compression", "none"),
        capture=options.get("capture", "eager"),
        protection=protection,
        flush_bandwidth=flush,
        flush_share=options.get("flush_share", FLUSH_SHARE),
        files=options.get("files", "rank"),
    )
    machine.nodes_for(ranks, width)  # refuses what the machine is too small for
    return job


def read_quantity(read: Callable[[object], float], text: str, name: str) -> float:
    """A rate, a time: with its unit.

    Args:
        read: of :mod:`deeppart.model.units`.
        name: of the option.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"impossible value for {name}", expected=str(error), found=repr(text), where=name) from None


def read_parity(text: str | None) -> tuple[int, int]:
    """(nodes of a group, how many may be lost) from ``8`` or ``8/2``; (0, 1) for None.

    Raises:
        ConfigError: something else.
    """
    if text is None:
        return 0, 1
    group, _, tolerate = text.partition("/")
    if not group.isdigit() or (tolerate and not tolerate.isdigit()) or int(group) < 2:
        raise ConfigError(
            "impossible value for --parity",
            expected="NODES or NODES/LOST, such as 8 or 8/2",
            found=text,
            where="--parity",
        )
    return int(group), int(tolerate or 1)


def counts(text: str, name: str) -> list[int]:
    """Whole numbers from ``1,4,64``.

    Raises:
        ConfigError: something else.
    """
    found = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in found):
        raise ConfigError(
            f"impossible value for {name}", expected="whole numbers from 1, separated by commas", found=text, where=name
        )
    return [int(word) for word in found]


# --- results ----------------------------------------------------------------------------------------------------------


def console() -> Console:
    """The console for tables."""
    found = Console(highlight=False)
    if not found.is_terminal:
        found.width = _UNLIMITED_COLUMNS
    return found


def status_console() -> Console:
    """The console for progress: not in the output that is piped on."""
    return Console(stderr=True, highlight=False)


def print_json(document: Any) -> None:
    """The one JSON document of a command: the same input, the same bytes."""
    commands.print_json(document, sort_keys=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of equal keys as CSV (RFC 4180)."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def table(title: str, columns: Iterable[str], left: int = 1) -> Table:
    """A table whose first columns are texts and whose others are numbers."""
    found = Table(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(columns):
        found.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return found
