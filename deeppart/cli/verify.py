"""``deeppart verify``: checks every digest, names damaged leaves, and repairs files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from deeppart import offline
from deeppart.cli.options import directory_argument, local_option, sign_key_option, step_option
from deeppart.cli.output import command, console, count, line, progress, render, state_text, unchecked_line, wants_json
from deeppart.model import show_bytes

#: Leaves printed per damaged place; --json has all of them.
_MOST_LEAVES = 20


def _step_lines(result: offline.VerifyResult) -> Iterator[Any]:
    head = Text.assemble((f"step {result.name}", "bold"), "  ", state_text(result.state))
    if result.parts:
        rate = f", {show_bytes(round(result.nbytes / result.seconds))}/s" if result.seconds > 0 else ""
        nbytes = show_bytes(result.nbytes)
        head.append(f"  {count(result.parts, 'part')}, {nbytes} read in {result.seconds:.2f} s{rate}")
    yield head
    for damage in result.damage:
        place = "" if damage.file is None else f"{damage.file}{_range(damage.start, damage.stop)}: "
        yield line(f"  {place}{damage.message}", "red")
        for leaf in damage.leaves[:_MOST_LEAVES]:
            box = "" if leaf.box is None else f" {leaf.box}"
            yield line(f"    {leaf.name}{box}{_range(leaf.start, leaf.stop)}")
        if len(damage.leaves) > _MOST_LEAVES:
            yield line(f"    and {count(len(damage.leaves) - _MOST_LEAVES, 'more leaf')}; --json lists all")
    if result.damaged_leaves:
        yield line(f"  {count(len(result.damaged_leaves), 'leaf')} damaged")


def _range(start: int | None, stop: int | None) -> str:
    return "" if start is None else f", bytes {start} to {stop}"


def _lines(found: offline.Verification) -> Iterator[Any]:
    """Everything but the lines that were printed as each step was read."""
    for step in found.steps:
        if step.signed and not found.signatures_checked:
            yield line(unchecked_line(step.step), "yellow")
    # Suspect steps are not damaged: the files are as they were written.
    suspect = [(step.step, step.suspect) for step in found.steps]
    suspect += [(attempt.step, leaves) for attempt, leaves in (found.nodes.suspect if found.nodes else ())]
    for number, leaves in suspect:
        for each in leaves:
            yield line(f"step {number} is suspect: {each}", "yellow")
    for problem in found.unreadable_suspect_records:
        yield line(f"a record of suspect steps cannot be read: {problem}", "yellow")
    if nodes := found.nodes:
        read = f"  {count(nodes.files, 'file')}, {show_bytes(nodes.nbytes)} read"
        yield Text.assemble(("on nodes", "bold"), "  ", state_text(nodes.state), read)
        for damage in nodes.damage:
            yield line(f"  {damage.message}", "red")
        for problem in nodes.unread:
            yield line(f"  could not be read: {problem}", "red")
        for remark in nodes.remarks:
            yield line(f"  {remark}")
    for repair in found.repairs or ():
        yield line(str(repair), "green" if repair.problem is None else "red")
    if found.owner is not None and found.owner.line:
        yield line(found.owner.line)


@command("Check every byte of a checkpoint.", _lines)
@directory_argument
@step_option("Which step; the newest commit if left out.")
@click.option("--all", "every", is_flag=True, help="Every step.")
@local_option("to read too: its parts, copies and parity")
@sign_key_option
@click.option(
    "--repair", is_flag=True, help="Replace damaged files by sound copies, or compute them from parity and parts."
)
@click.option(
    "--no-lock",
    "without_lock",
    is_flag=True,
    help="For --repair on file systems without locks: you are sure that no job is running there.",
)
def verify(directory: Path, step: int | None, every: bool, **options: Any) -> offline.Verification:
    """Read all of a checkpoint in DIR and check every digest.

    It continues after damage, and names the damaged leaves. Exit code 1 if anything is damaged or incomplete and has
    not been repaired. --repair refuses while a job is running there: a job repairs its own nodes (scrub_bandwidth).
    """
    if every and step is not None:
        raise click.UsageError("--step and --all exclude each other")
    out = console()

    def verified(result: offline.VerifyResult) -> None:
        render(() if wants_json() else _step_lines(result), out)

    with progress(screen=out) as bar:
        return offline.verify_directory(directory, step=step, every=every, progress=bar, verified=verified, **options)
