"""Every option that several commands have, in one table, and the job that options describe.

Each option changes something, or is refused (:func:`no_effect`).
"""

from __future__ import annotations

import inspect
import math
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from click.core import ParameterSource
from rich.status import Status

from deeppart.errors import ConfigError
from deeppart.model import WORDS, meant_todo, read_rate, read_seconds
from deeppart.partition import STRATEGIES
from deeppart.plan.interval import FLUSH_SHARE

from ..advise.choose import Wanted
from ..campaign.failures import Scheduling, Waits
from ..machine.files import read_machine
from ..machine.record import LEAST_RATE, MOST_RANKS_PER_NODE, RATE, WAYS, Machine
from ..measure.start import Directories
from ..report.blocks import Result
from ..timing.stages import COMPRESSIONS, Job
from ..traces.read import read_trace
from ..workload.external import read_external
from ..workload.states import read_state
from .listing import list_machines, list_states
from .output import emit, status_console

DEFAULT_STATE = "bert-large+adam"
#: More than any machine has; beyond, the simulator itself would take long and much memory.
MOST_RANKS = 1 << 20
#: As the library's `parity_group` (docs/configuration.md).
_MOST_PARITY_NODES = 127
_EXPONENTIAL = "exponential:"


# --- kinds of values --------------------------------------------------------------------------------------------------


class FiniteRange(click.FloatRange):
    """A number in a range. Not NaN, which no bound keeps out, and not infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, if it is one."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


class NewFile(click.Path):
    """A file that a command will write. What cannot be written is refused before, not after, what may take minutes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, if there is a directory to write it in."""
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not found.parent.is_dir():
            self.fail(f"there is no directory {str(found.parent)!r} to write {found.name!r} in.", param, ctx)
        if not found.exists() and not os.access(found.parent, os.W_OK):
            self.fail(f"the directory {str(found.parent)!r} is not writable.", param, ctx)
        return found


def option(*names: str, **how: Any) -> click.Option:
    """An option; its default, if it has one, is shown."""
    shows = how.get("default") is not None and not how.get("is_flag")
    return click.Option(list(names), **({"show_default": True} if shows else {}) | how)


# --- the table --------------------------------------------------------------------------------------------------------

_OPTIONS = (
    option(
        "--state", default=DEFAULT_STATE, metavar="MODEL[:DTYPE][+OPTIMIZER][@LAYOUT]",
        help='State of the job; "list" for the models, "list:STATE" for the size of one.',
    ),
    option(
        "--from", "source", type=click.Path(path_type=Path), metavar="DIR|FILE.py[:FUNCTION]",
        help="A checkpoint, or a Python file with a function that builds a model on the meta device; then --state "
        "has only +OPTIMIZER and @LAYOUT.",
    ),
    option(
        "--machine", default="frontier", metavar="FILE|PRESET",
        help='Machine of the job; "list" for the presets, "list:NAME" for one as a complete machine file.',
    ),
    option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    option("--csv", "csv_path", type=NewFile(), metavar="FILE", help="Write the table as CSV."),
    option("--report", "report_path", type=NewFile(), metavar="FILE", help="Write a page for a browser."),
    option("--png", "png_path", type=NewFile(), metavar="FILE", help="Draw the result."),
    option("--ranks", type=click.IntRange(1, MOST_RANKS), default=512, help="Number of ranks."),
    option(
        "--ranks-per-node", type=click.IntRange(1, MOST_RANKS_PER_NODE),
        help="Ranks on each node; the machine's if left out.",
    ),
    # Left out, advise and restart compare what is possible; the others take what is said.
    option("--compression", type=click.Choice(COMPRESSIONS), help="Of part files; none, or compared, if left out."),
    option("--capture", default="eager", type=click.Choice(("eager", "lazy"))),
    option("--partner/--no-partner", default=None, help="Copies on another node; on, or compared, if left out."),
    option(
        "--parity", metavar="NODES[/LOST]",
        help="Parity groups of NODES nodes, of which LOST may be lost; none, or compared, if left out.",
    ),
    option("--local/--no-local", default=None, help="The nodes' own storage; on, or compared, if left out."),
    option("--flush-bandwidth", metavar="RATE", help="Most bytes per second of a node to the file system."),
    option(
        "--flush-share", type=FiniteRange(min=0, max=1, min_open=True), default=FLUSH_SHARE,
        help="Share of the time that the job may be writing there, where no --flush-bandwidth is the limit.",
    ),
    option("--strategy", default="deeppart", type=click.Choice(STRATEGIES), help="Who saves what."),
    option(
        "--step-time", metavar="TIME",
        help="Length of a training step, at each of which the script calls checkpoint(); cadences are then in steps.",
    ),
    option(
        "--mtbf-factor", type=FiniteRange(min=0, min_open=True), default=1.0,
        help="Factor for all times between failures.",
    ),
    option(
        "--restart-mode", type=click.Choice(tuple(WAYS)),
        help="How the job comes back, as `deeppart-sim restart` compares it; the machine's own if left out.",
    ),
    option("--preemption", metavar="TIME", help="Mean time between preemptions; none if left out."),
    option("--notice", metavar="TIME", help="Warning before the job is ended; none if left out."),
    option("--quick", is_flag=True, help="Less exact, in a quarter of the time."),
    option(
        "--local-dir", type=click.Path(path_type=Path, exists=True),
        help="On the node's own storage.  [default: /dev/shm]",
    ),
    option(
        "--persistent-dir", type=click.Path(path_type=Path, exists=True),
        help="On the file system.  [default: the temporary directory]",
    ),
)  # fmt: skip
OPTIONS: Mapping[str, click.Option] = {each.opts[0].removeprefix("--"): each for each in _OPTIONS}

SOURCE = ("state", "from", "machine")
OUTPUT = ("json", "csv", "report")
PICTURE = "png"
CHECKPOINTS = (
    "ranks-per-node", "compression", "capture", "partner", "parity", "local", "flush-bandwidth", "flush-share",
)  # fmt: skip
MEASURING = ("quick", "local-dir", "persistent-dir")
#: Of a context, what was given to the command: to be run again.
LINE = "deeppart_simulator.line"


class Asked:
    """The options of a command, as given, by the names of its parameters; and what tells how far it is."""

    status: Status

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def seconds(self, name: str) -> float | None:
        """A time that may be left out."""
        text = self.values.get(name)
        return None if text is None else read_time(text, f"--{name.replace('_', '-')}")

    def machine_of_job(self) -> Machine:
        """The machine, with the way to come back and the failures that are asked for."""
        machine = read_machine(self.machine)
        if self.values.get("restart_mode") is not None:
            machine = replace(machine, restart=replace(machine.restart, mode=self.restart_mode))
        factor = self.values.get("mtbf_factor", 1.0)
        return machine if factor == 1.0 else machine.with_failures(factor)

    def wanted(self) -> Wanted:
        """The levels and the compression that are asked for."""
        parity = None if self.parity is None else _read_parity(self.parity)
        wanted = Wanted(self.local, self.partner, parity, self.compression)
        for name, is_given in (("--partner", wanted.partner), ("--parity", parity)):
            if wanted.local is False and is_given:
                raise no_effect(
                    name, "it protects what is on the nodes' storage, which --no-local leaves out",
                    f"leave out --no-local, or {name}",
                )  # fmt: skip
        return wanted

    def job(self, ranks: int | None = None) -> Job:
        """The job that is described."""
        state = (
            read_state(self.state)
            if self.source is None
            else read_external(self.source, "" if self.state == DEFAULT_STATE else self.state)
        )
        machine, limit = self.machine_of_job(), self.flush_bandwidth
        if limit is not None and given("flush_share"):
            why = "with --flush-bandwidth that is the limit, all of the time"
            raise no_effect("--flush-share", why, "leave out one of the two")
        wanted, compression = self.wanted(), self.compression or "none"
        job = Job(
            state, machine, ranks or self.ranks, self.ranks_per_node or machine.ranks_per_node,
            strategy=self.values.get("strategy", "deeppart"),
            compression=compression,
            capture=self.capture,
            protection=wanted.protection(),
            flush_bandwidth=math.inf if limit is None else _read_flush(limit),
            flush_share=self.flush_share,
        )  # fmt: skip
        if wanted.partner and job.nodes == 1:
            raise no_effect("--partner", "copies are kept on another node, and the job has one node")
        dtypes = {tensor.dtype for tensor in (*state.tensors, *state.per_rank)}
        if compression != "none" and dtypes.isdisjoint(machine.codecs):
            why = f"{machine.name} has no codec for what the state is made of: {', '.join(sorted(dtypes))}"
            raise no_effect("--compression", why, "leave it out, or add tables [codec.DTYPE] to --machine")
        return job

    def scheduling(self) -> Scheduling:
        """What the scheduler does to the job."""
        queue = self.values.get("queue")
        return Scheduling(
            limit_s=self.seconds("time_limit") or math.inf,
            preemption_s=self.seconds("preemption") or math.inf,
            notice_s=self.seconds("notice") or 0.0,
            waits=Waits() if queue is None else _read_waits(queue),
        )

    def directories(self) -> Directories:
        """The directories for real checkpoints."""
        memory, temporary = Path("/dev/shm"), Path(tempfile.gettempdir())
        local = self.local_dir or (memory if memory.is_dir() else temporary)
        return Directories(local, self.persistent_dir or temporary)


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[LINE] = shlex.join([*ctx.command_path.split(), *args])
        return super().parse_args(ctx, args)


def command(short_help: str, *params: str | click.Parameter) -> Callable[[Callable[[Asked], Result]], click.Command]:
    """A command with some options of the table, by name, and some of its own."""

    def made(function: Callable[[Asked], Result]) -> click.Command:
        def callback(**values: Any) -> int:
            for name, show in (("machine", list_machines), ("state", list_states)):
                word, _, one = (values.get(name) or "").partition(":")
                if word == "list":
                    return show(one, values.get("as_json", False))
            asked = Asked(values)
            with status_console().status(function.__name__) as asked.status:
                found = function(asked)
            return emit(values, found, click.get_current_context().meta[LINE])

        every = [OPTIONS[each] if isinstance(each, str) else each for each in params]
        return _Command(
            function.__name__, callback=callback, params=every, help=inspect.getdoc(function), short_help=short_help
        )

    return made


def given(name: str) -> bool:
    """True if an option of the command that runs was given, not left to its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def no_effect(name: str, why: str, todo: str | None = None) -> ConfigError:
    """The refusal of an option that would change nothing."""
    return ConfigError(
        f"{name} would change nothing", expected=why, found=f"{name} is given", where=name, todo=todo or "leave it out"
    )


# --- values -----------------------------------------------------------------------------------------------------------


def impossible(name: str, expected: str, found: str, todo: str | None = None) -> ConfigError:
    """The refusal of a value."""
    return ConfigError(f"impossible value for {name}", expected=expected, found=found, where=name, todo=todo)


def read_time(text: str, name: str) -> float:
    """Seconds, above 0."""
    found = _read_quantity(read_seconds, text, name)
    if not 0 < found < math.inf:
        raise impossible(name, WORDS["seconds"] + ", above 0", repr(text))
    return found


def read_counts(text: str, name: str) -> list[int]:
    """Whole numbers from ``1,4,64``."""
    found = [word.strip() for word in text.split(",")]
    whole = all(word.isascii() and word.isdigit() and len(word) <= len(str(MOST_RANKS)) for word in found)
    if not whole or not all(1 <= int(word) <= MOST_RANKS for word in found):
        raise impossible(name, f"whole numbers from 1 to {MOST_RANKS}, separated by commas", text)
    return [int(word) for word in found]


def _read_quantity(read: Callable[[object], float], text: str, name: str) -> float:
    try:
        return read(text)
    except ValueError as error:
        raise impossible(name, str(error), repr(text)) from None


def _read_flush(text: str) -> float:
    found = _read_quantity(read_rate, text, "--flush-bandwidth")
    if not LEAST_RATE <= found < math.inf:
        todo = 'give it with its unit, such as "2.5 GB/s", or leave it out where there is no limit'
        raise impossible("--flush-bandwidth", RATE.words, repr(text), todo)
    return found


def _read_parity(text: str) -> tuple[int, int]:
    """(nodes of a group, how many may be lost) from ``8`` or ``8/2``."""
    group, _, tolerate = text.partition("/")
    whole = all(word.isascii() and word.isdigit() and len(word) < 4 for word in (group, tolerate or "1"))
    if not whole or not 2 <= int(group) <= _MOST_PARITY_NODES:
        expected = f"NODES or NODES/LOST, such as 8 or 8/2, of 2 to {_MOST_PARITY_NODES} nodes"
        raise impossible("--parity", expected, text)
    return int(group), int(tolerate or 1)


def _read_waits(text: str) -> Waits:
    """Times in the queue: always the same, exponential, or those that the jobs of a trace had."""
    if text.startswith(_EXPONENTIAL):
        return Waits(read_time(text.removeprefix(_EXPONENTIAL), "--queue"), exponential=True)
    if not Path(text).is_file():
        try:
            return Waits(read_time(text, "--queue"))
        except ConfigError:
            todo = meant_todo(text.split(":", maxsplit=1)[0], ["exponential"], "give a time, or the path of a trace")
            expected = f"{WORDS['seconds']}; exponential:TIME; or a file"
            raise impossible("--queue", expected, repr(text), todo) from None
    seen = read_trace(Path(text)).waits_s
    if not seen:
        raise ConfigError(
            "nothing in this trace says how long jobs waited", expected="the output of sacct with Submit",
            found=text, where="--queue",
        )  # fmt: skip
    return Waits(fmean(seen), seen=seen)
