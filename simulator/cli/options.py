"""Common parts of the commands: options, the job that they describe, and the output of results."""

from __future__ import annotations

import csv
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from deeppart.cli import commands
from deeppart.errors import ConfigError
from deeppart.model.units import SECONDS_WORDS, read_rate, read_seconds
from deeppart.plan.interval import FLUSH_SHARE

from ..advise.choose import Wanted
from ..machine.files import read_machine
from ..machine.record import LEAST_RATE, MOST_RANKS_PER_NODE, RATE, Machine
from ..measure.start import Directories
from ..timing.stages import COMPRESSIONS, FILES, Job
from ..workload.external import read_external
from ..workload.states import State, read_state
from .parameters import FiniteRange, NewFile, OneOf, add_options, given, no_effect

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STATE, DEFAULT_MACHINE, DEFAULT_RANKS, DEFAULT_SEED = "bert-large+adam", "frontier", 512, 1
#: More than any machine has; beyond, the simulator itself would take long and much memory.
MOST_RANKS = 1 << 20
#: As the library's `parity_group` (docs/configuration.md).
MOST_PARITY_NODES = 127


@dataclass(frozen=True)
class Output:
    """The results that a command is asked for.

    Attributes:
        as_json: true to print one JSON document.
        csv_path, report_path, png_path: files to write, or None.
    """

    as_json: bool
    csv_path: Path | None
    report_path: Path | None
    png_path: Path | None


@dataclass(frozen=True)
class Common(Output):
    """The options of every command that is about a job.

    Attributes:
        state, source, machine: texts as given.
        seed: of everything that is random.
    """

    state: str
    source: Path | None
    machine: str
    seed: int

    def read_state(self) -> State:
        """The state that --state and --from describe."""
        if self.source is None:
            return read_state(self.state)
        text = "" if self.state == DEFAULT_STATE else self.state
        return read_external(self.source, text)

    def read_machine(self) -> Machine:
        """The machine."""
        return read_machine(self.machine)


#: The job that a command is about: its state, and its machine.
SOURCE_OPTIONS = (
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
        type=click.Path(path_type=Path),
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
)


def common_options(function: F) -> F:
    """The options of every command that is about a job, as one argument ``common``."""

    @functools.wraps(function)
    def wrapped(state: str, source: Path | None, machine: str, seed: int, output: Output, **rest: Any) -> Any:
        return function(Common(**vars(output), state=state, source=source, machine=machine, seed=seed), **rest)

    decorators = (
        *SOURCE_OPTIONS,
        click.option(
            "--seed", type=click.IntRange(min=0), default=DEFAULT_SEED, show_default=True, help="Of random numbers."
        ),
    )
    return cast("F", add_options(decorators, output_options(wrapped)))


def output_options(function: F) -> F:
    """The forms in which a command gives its results, as one argument ``output``."""

    @functools.wraps(function)
    def wrapped(
        as_json: bool, csv_path: Path | None, report_path: Path | None, png_path: Path | None, **rest: Any
    ) -> Any:
        return function(output=Output(as_json, csv_path, report_path, png_path), **rest)

    path = NewFile()
    decorators = (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option("--csv", "csv_path", type=path, metavar="FILE", help="Write the table as CSV."),
        click.option("--report", "report_path", type=path, metavar="FILE", help="Write a page for a browser."),
        click.option("--png", "png_path", type=path, metavar="FILE", help="Draw the result."),
    )
    return cast("F", add_options(decorators, wrapped))


def measuring_options(function: F) -> F:
    """The directories for the real checkpoints that a command measures, as one argument ``directories``."""

    @functools.wraps(function)
    def wrapped(local_dir: Path | None, persistent_dir: Path | None, **rest: Any) -> Any:
        memory, temporary = Path("/dev/shm"), Path(tempfile.gettempdir())
        local = local_dir or (memory if memory.is_dir() else temporary)
        return function(directories=Directories(local, persistent_dir or temporary), **rest)

    path = click.Path(path_type=Path, exists=True)
    decorators = (
        click.option("--local-dir", type=path, help="On the node's own storage.  [default: /dev/shm]"),
        click.option("--persistent-dir", type=path, help="On the file system.  [default: the temporary directory]"),
    )
    return cast("F", add_options(decorators, wrapped))


def ranks_option(function: F) -> F:
    """The size of one job."""
    kind = click.IntRange(1, MOST_RANKS)
    return click.option("--ranks", type=kind, default=DEFAULT_RANKS, show_default=True, help="Number of ranks.")(
        function
    )


def job_options(function: F) -> F:
    """Options that describe how the job checkpoints."""
    return _job_options(function, lambda usual: f"{usual} if left out")


def free_job_options(function: F) -> F:
    """The same where an option that is left out is for the command to choose."""
    return _job_options(function, lambda usual: "compared if left out")


def _job_options(function: F, otherwise: Callable[[str], str]) -> F:
    decorators = (
        click.option(
            "--ranks-per-node",
            type=click.IntRange(1, MOST_RANKS_PER_NODE),
            help="Ranks on each node; the machine's if left out.",
        ),
        click.option("--compression", type=OneOf(COMPRESSIONS), help=f"Of part files; {otherwise('none')}."),
        click.option("--capture", default="eager", type=OneOf(("eager", "lazy")), show_default=True),
        click.option("--partner/--no-partner", default=None, help=f"Copies on another node; {otherwise('on')}."),
        click.option(
            "--parity",
            metavar="NODES[/LOST]",
            help=f"Parity groups of NODES nodes, of which LOST may be lost; {otherwise('none')}.",
        ),
        click.option("--local/--no-local", default=None, help=f"The nodes' own storage; {otherwise('on')}."),
        click.option("--files", default="rank", type=OneOf(FILES), show_default=True, help="On the file system."),
        click.option("--flush-bandwidth", metavar="RATE", help="Most bytes per second of a node to the file system."),
        click.option(
            "--flush-share",
            "--drain-share",
            type=FiniteRange(min=0, max=1, min_open=True),
            default=FLUSH_SHARE,
            show_default=True,
            help="Share of the time that the job may be writing there, where no --flush-bandwidth is the limit.",
        ),
    )
    return cast("F", add_options(decorators, function))


def wanted_of(options: Mapping[str, Any]) -> Wanted:
    """The levels and the compression that the options ask for."""
    parity = None if options.get("parity") is None else read_parity(options["parity"])
    wanted = Wanted(options.get("local"), options.get("partner"), parity, options.get("compression"))
    if wanted.local is False:
        for option, is_given in (("--partner", wanted.partner), ("--parity", parity)):
            if is_given:
                raise no_effect(
                    option, "it protects what is on the nodes' storage, which --no-local leaves out",
                    f"leave out --no-local, or {option}",
                )  # fmt: skip
    return wanted


def make_job(state: State, machine: Machine, ranks: int, options: Mapping[str, Any]) -> Job:
    """The job that the options describe."""
    wanted = wanted_of(options)
    limit = options.get("flush_bandwidth")
    if limit is not None and given("flush_share"):
        raise no_effect(
            "--flush-share", "with --flush-bandwidth that is the limit, all of the time",
            "leave out one of the two",
        )  # fmt: skip
    job = Job(
        state=state,
        machine=machine,
        ranks=ranks,
        ranks_per_node=options.get("ranks_per_node") or machine.ranks_per_node,
        compression=wanted.compression or "none",
        capture=options.get("capture", "eager"),
        protection=wanted.protection(),
        flush_bandwidth=math.inf if limit is None else read_flush(limit),
        flush_share=options.get("flush_share", FLUSH_SHARE),
        files=options.get("files", "rank"),
    )
    if wanted.partner and job.nodes == 1:
        raise no_effect("--partner", "copies are kept on another node, and the job has one node")
    if job.compression != "none" and not machine.codecs:
        raise no_effect(
            "--compression", f"{machine.name} has no codec", "leave it out, or add tables [codec.DTYPE] to --machine"
        )
    dtypes = {tensor.dtype for tensor in (*state.tensors, *state.own)}
    if job.compression != "none" and dtypes.isdisjoint(machine.codecs):
        raise no_effect(
            "--compression", f"{machine.name} has no codec for what the state is made of: {', '.join(sorted(dtypes))}",
            "leave it out, or add tables [codec.DTYPE] to --machine",
        )  # fmt: skip
    return job


def one_node_job(machine: Machine) -> Job:
    """A job with the default state on one full node: for the pages about a machine that was measured."""
    return make_job(read_state(DEFAULT_STATE), machine, machine.ranks_per_node, {"partner": False})


def read_flush(text: str) -> float:
    """Bytes per second of a node, from ``--flush-bandwidth``."""
    found = read_quantity(read_rate, text, "--flush-bandwidth")
    if not LEAST_RATE <= found < math.inf:
        raise ConfigError(
            "impossible value for --flush-bandwidth", expected=RATE.words, found=repr(text), where="--flush-bandwidth",
            todo='give it with its unit, such as "2.5 GB/s", or leave it out where there is no limit',
        )  # fmt: skip
    return found


def read_time(text: str, name: str) -> float:
    """Seconds, above 0."""
    found = read_quantity(read_seconds, text, name)
    if not 0 < found < math.inf:
        expected = SECONDS_WORDS + ", above 0"
        raise ConfigError(f"impossible value for {name}", expected=expected, found=repr(text), where=name)
    return found


def refuse_seed(common: Common) -> None:
    """Refuse --seed where nothing is random but the campaign of a page."""
    if given("seed") and common.report_path is None:
        raise no_effect("--seed", "only the campaign of --report has random numbers")


def read_quantity(read: Callable[[object], float], text: str, name: str) -> float:
    """A rate, a time: with its unit."""
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"impossible value for {name}", expected=str(error), found=repr(text), where=name) from None


def read_parity(text: str) -> tuple[int, int]:
    """(nodes of a group, how many may be lost) from ``8`` or ``8/2``."""
    group, _, tolerate = text.partition("/")
    whole = all(word.isascii() and word.isdigit() and len(word) < 4 for word in (group, tolerate or "1"))
    if not whole or not 2 <= int(group) <= MOST_PARITY_NODES:
        raise ConfigError(
            "impossible value for --parity",
            expected=f"NODES or NODES/LOST, such as 8 or 8/2, of 2 to {MOST_PARITY_NODES} nodes",
            found=text,
            where="--parity",
        )
    return int(group), int(tolerate or 1)


def counts(text: str, name: str) -> list[int]:
    """Whole numbers from ``1,4,64``."""
    found = [word.strip() for word in text.split(",")]
    whole = all(word.isascii() and word.isdigit() and len(word) <= len(str(MOST_RANKS)) for word in found)
    if not whole or not all(1 <= int(word) <= MOST_RANKS for word in found):
        expected = f"whole numbers from 1 to {MOST_RANKS}, separated by commas"
        raise ConfigError(f"impossible value for {name}", expected=expected, found=text, where=name)
    return [int(word) for word in found]


# --- results ----------------------------------------------------------------------------------------------------------


def print_json(document: Any) -> None:
    """The one JSON document of a command: the same input, the same bytes."""
    commands.print_json(document, sort_keys=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of equal keys as CSV (RFC 4180)."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
