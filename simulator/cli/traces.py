"""Options of a campaign about what happens to a job: traces, and what a scheduler does."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import numpy as np

from deeppart.errors import ConfigError
from deeppart.model.spelling import meant_todo
from deeppart.model.units import SECONDS_WORDS

from ..campaign.failures import PREEMPTION, Failure, Scheduling, Size, Waits, failures_from, rates_per_s
from ..campaign.outcomes import show_number
from ..timing.stages import Job
from ..traces.read import read_trace
from .options import read_time
from .parameters import add_options, no_effect

F = TypeVar("F", bound=Callable[..., Any])
_EXPONENTIAL = "exponential:"
#: Numbers of failures of which one is so many times the other are told, unless both are below so many.
_FAR, _FEW = 2, 5


@dataclass(frozen=True)
class Happenings:
    """What happens to a job besides drawn failures.

    Attributes:
        trace: failures instead of drawn ones, or None.
        system: of LANL's, as given.
        scheduling: what the scheduler does.
    """

    trace: Path | None
    system: str | None
    scheduling: Scheduling

    def failures(self, size: Size, wall_s: float) -> tuple[Failure, ...] | None:
        """Those of the trace that strike the job; None without one."""
        if self.trace is None and self.system is not None:
            raise no_effect("--system", "it is about --trace")
        found = None if self.trace is None else failures_from(self.trace, size, self.system, wall_s)
        self._check(any(failure.kind == PREEMPTION for failure in found or ()))
        return found

    def _check(self, traced: bool) -> None:
        """Refuse what nothing can come of."""
        scheduling = self.scheduling
        if not (traced or scheduling.ends_per_s()):
            why = "the job never leaves its nodes: give --time-limit or --preemption, or a --trace with preemptions"
            if scheduling.notice_s:
                raise no_effect("--notice", why)
            if scheduling.waits != Waits():
                raise no_effect("--queue", why)
        if scheduling.notice_s >= scheduling.limit_s:
            raise ConfigError(
                "--notice leaves no time to train", expected="less than --time-limit",
                found=f"{scheduling.notice_s:g} s of {scheduling.limit_s:g} s", where="--notice",
            )  # fmt: skip


def happenings_options(function: F) -> F:
    """What happens to the job, as one argument ``happenings``."""

    @functools.wraps(function)
    def wrapped(
        *first: Any,
        trace: Path | None,
        system: str | None,
        time_limit: str | None,
        queue: str | None,
        scheduling: Scheduling,
        **rest: Any,
    ) -> Any:
        scheduling = replace(
            scheduling,
            limit_s=math.inf if time_limit is None else read_time(time_limit, "--time-limit"),
            waits=Waits() if queue is None else read_waits(queue),
        )
        return function(*first, happenings=Happenings(trace, system, scheduling), **rest)

    decorators = (
        click.option(
            "--trace",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Failures from a file instead of random ones: of sacct, LANL, Philly, a job's own runs, or a table.",
        ),
        system_option,
        click.option("--time-limit", metavar="TIME", help="Of each turn of the job; no limit if left out."),
        click.option(
            "--queue",
            metavar="TIME|exponential:TIME|FILE",
            help="How long it waits for its next turn: always, on average, or as the jobs of a trace did.",
        ),
    )
    return cast("F", add_options(decorators, preemption_options(wrapped)))


def preemption_options(function: F) -> F:
    """Preemptions, and the notice before a turn ends, as one argument ``scheduling``."""

    @functools.wraps(function)
    def wrapped(*first: Any, preemption: str | None, notice: str | None, **rest: Any) -> Any:
        scheduling = Scheduling(
            preemption_s=math.inf if preemption is None else read_time(preemption, "--preemption"),
            notice_s=0.0 if notice is None else read_time(notice, "--notice"),
        )
        return function(*first, scheduling=scheduling, **rest)

    decorators = (
        click.option(
            "--preemption", metavar="TIME", help="Mean time after which the job has to make room; never if left out."
        ),
        click.option("--notice", metavar="TIME", help="The job is told so long before; not at all if left out."),
    )
    return cast("F", add_options(decorators, wrapped))


def system_option(function: Any) -> Any:
    """Which of the systems in LANL's file."""
    return click.option("--system", metavar="NUMBER", help="Of LANL's 22, where the trace is theirs.")(function)


def read_waits(text: str) -> Waits:
    """Times in the queue, from ``--queue``."""
    if text.startswith(_EXPONENTIAL):
        return Waits(read_time(text.removeprefix(_EXPONENTIAL), "--queue"), exponential=True)
    if not Path(text).is_file():
        try:
            return Waits(read_time(text, "--queue"))
        except ConfigError:
            expected = f"{SECONDS_WORDS}; exponential:TIME; or a file"
            raise ConfigError(
                "impossible value for --queue", expected=expected, found=repr(text), where="--queue",
                todo=meant_todo(text.split(":", maxsplit=1)[0], ["exponential"], "give a time, or the path of a trace"),
            ) from None  # fmt: skip
    seen = read_trace(Path(text)).waits_s
    if not len(seen):
        raise ConfigError(
            "nothing in this trace says how long jobs waited", expected="the output of sacct with Submit, or of Philly",
            found=text, where="--queue",
        )  # fmt: skip
    return Waits(float(np.mean(seen)), seen=tuple(float(wait) for wait in seen))


def other_rates(job: Job, trace: tuple[Failure, ...], wall_s: float) -> str:
    """What to know where a trace has far more failures than the machine file, or far fewer: cadence and spare nodes
    that are left out are chosen for those of the file. Empty if it has about as many.
    """
    seen = sum(failure.kind != PREEMPTION for failure in trace)
    expected = wall_s * sum(rates_per_s(job.machine.failures, Size(job.ranks, job.nodes)).values())
    if max(seen, expected) < _FEW or (seen < _FAR * expected and expected < _FAR * seen):
        return ""
    return (
        f"the trace has {seen:,} failures, where {job.machine.name} has {show_number(expected)} in that time: what is "
        "chosen here (cadence, spare nodes) is chosen for the latter; `deeppart-sim fit` makes [failures] of a trace"
    )
