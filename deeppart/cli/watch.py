"""``deeppart watch``: shows a running job, from the status files that it writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from deeppart._times import seconds_of, timestamp
from deeppart.cli.commands import printable
from deeppart.cli.options import directory_argument
from deeppart.cli.output import Shown, command, console, count, line, moment, table_of, wants_json
from deeppart.errors import StorageError
from deeppart.model import show_seconds
from deeppart.offline import CheckpointView, JobView, age_of, look_at_job, name_ranks
from deeppart.telemetry import RankStatus, prometheus_text

#: Errors and lines of a kind that are shown to people.
_MOST_SHOWN = 5


def _watch(directory: Path, interval_s: float, view: JobView) -> None:
    """Watch until interrupted: redraw a terminal; elsewhere print a line whenever something has changed."""
    out = console()
    if out.is_terminal:
        with Live(Group(*_lines(view)), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                live.update(_look_again(directory), refresh=True)
    last = ""
    while True:
        text = _summary(view)
        if text != last:
            out.print(f"{moment(timestamp(view.time))} {text}")
        last = text
        time.sleep(interval_s)
        try:
            view = look_at_job(directory, time.time())
        except StorageError as error:  # may pass
            last = printable(f"{error.summary}: {error.found}")
            out.print(f"{moment(timestamp(time.time()))} {last}")


def _look_again(directory: Path) -> Group:
    try:
        return Group(*_lines(look_at_job(directory, time.time())))
    except StorageError as error:
        return Group(line(f"{error.summary}: {error.found}", "bold red"))


# --- text ---


def _lines(view: JobView) -> Iterator[Any]:
    yield from map(line, _head(view))
    for reason in view.reasons[: 2 * _MOST_SHOWN]:
        yield line(reason, "bold red")
    if view.levels:
        yield table_of(view.levels)
    yield from map(line, (*_in_flight(view), *_figures(view)))
    for rank, error in view.errors[-_MOST_SHOWN:]:
        what = f"level {error.level}" if error.level else "removing old steps"
        brief = _brief(error.text.splitlines())
        yield line(f"error      {moment(error.at)} rank {rank}, step {error.step}, {what}: {brief}")
    for problem in view.problems[:_MOST_SHOWN]:
        yield line(f"note: {problem}")
    if len(view.problems) > _MOST_SHOWN:
        yield line(f"note: and {count(len(view.problems) - _MOST_SHOWN, 'such line')}")


def _brief(lines: list[str]) -> str:
    """The summary of an error and what was found; the rest is in the job's log."""
    found = [line.strip() for line in lines[1:] if line.strip().startswith("found:")]
    return "; ".join([*lines[:1], *found])


def _head(view: JobView) -> Iterator[str]:
    who = view.owner.who if view.owner is not None else "an unknown process"
    since = f", since {moment(view.owner.since)}" if view.owner is not None else ""
    yield f"{view.directory}  {view.state}: {who}{since}"
    lead = view.lead
    if lead is not None:
        written = show_seconds(age_of(lead.written, view.time))
        files = f"{count(len(view.ranks), 'status file')}, written {written} ago"
        yield f"{count(lead.world_size, 'rank')} on {count(lead.nodes, 'node')}; {files}"


def _in_flight(view: JobView) -> Iterator[str]:
    for each in view.checkpoints:
        if not each.over:
            yield f"in flight  step {each.step}, for {show_seconds(each.age_s)}: {_levels_text(each)}"


def _levels_text(checkpoint: CheckpointView) -> str:
    return ", ".join(
        f"{level.name} {level.state}" + (f" (waiting for rank {name_ranks(level.late)})" if level.late else "")
        for level in checkpoint.levels
    )


def _figures(view: JobView) -> Iterator[str]:
    lead = view.lead
    if lead is None:
        return
    blocked = view.blocked
    if blocked is not None:
        mean = "" if blocked.mean_s is None else f", mean {show_seconds(blocked.mean_s)}"
        most = f", most {show_seconds(blocked.most_s)}, {show_seconds(blocked.total_s)} in all" if mean else ""
        yield f"blocked    last {show_seconds(blocked.last_s)}{mean}{most}"
    if lead.period_s is not None:
        yield f"cadence    every {show_seconds(lead.period_s)}{_next_text(lead, view.time)}"
    if any(each.repairing for each in view.ranks):
        yield "repairing  copies or parity of the restored step are being rebuilt"
    if lead.scrubbed is not None:
        found = count(lead.scrubbed.damaged, "damaged file")
        yield f"scrubbing  {count(lead.scrubbed.cycles, 'full round')}, {found} found by rank {lead.rank}"
    yield from (f"reduced    {each}" for each in lead.reduced)


def _next_text(lead: RankStatus, now_s: float) -> str:
    if lead.next_due is None:
        return ""
    left_s = seconds_of(lead.next_due) - now_s
    return f", next in {show_seconds(left_s)}" if left_s > 0 else f", next due since {show_seconds(-left_s)}"


def _summary(view: JobView) -> str:
    """The state of the job in one line, without anything that changes by itself, such as ages."""
    parts = [view.state]
    parts += [f"{level.name} {level.step}" for level in view.levels if level.step is not None]
    parts += [f"in flight: step {each.step} ({_levels_text(each)})" for each in view.checkpoints if not each.over]
    parts += [f"{level.name}: {level.failed} failed" for level in view.levels if level.failed]
    if blocked := view.blocked:
        parts.append(f"blocked {show_seconds(blocked.last_s)}")
    if view.stale:
        parts.append(f"stale: rank {name_ranks(view.stale)}")
    parts += [f"{count(len(view.problems), 'file')} not used"] if view.problems else []
    return printable("; ".join(parts))


@command("Watch a running job.")
@directory_argument
@click.option("--interval", metavar="S", type=click.FloatRange(0.1, 86400), default=2.0, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--prometheus", is_flag=True, help="Look once, and print metrics for Prometheus.")
def watch(directory: Path, interval: float, once: bool, prometheus: bool) -> Shown:
    """Show what the job in DIR is at: last complete steps, checkpoints in flight, rates, blocked time, errors, ranks
    that are late, and whether it still runs. It reads the files that the job writes (`status`), and disturbs nothing.

    Goes on until interrupted. With --once, --json or --prometheus: exit code 0 if the job runs, or has ended as it
    should, and nothing is wrong, else 1.
    """
    if wants_json() and prometheus:
        raise click.UsageError("--json and --prometheus are two forms of one thing")
    view = look_at_job(directory, time.time())
    if prometheus:
        return Shown(view, lambda view: [Text(prometheus_text(view.ranks).rstrip("\n"))])
    if not once and not wants_json():
        _watch(directory, interval, view)
    return Shown(view, _lines)
