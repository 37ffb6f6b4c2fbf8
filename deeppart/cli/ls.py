"""``deeppart ls``: the steps in a directory, and whether they are whole."""

from __future__ import annotations

from pathlib import Path

import click

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json, printable
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.cli.output import console, moment, record_json, some, state_text, step_names, table, to_json
from deeppart.model import LEVELS, Level, show_bytes
from deeppart.offline.inspect.listing import DAMAGED, UNFINISHED_STATE, Listing, StepSummary, list_directory
from deeppart.offline.inspect.ownership import Owner
from deeppart.part import Signing


@click.command(short_help="List the steps; say whether they are complete.")
@directory_argument
@local_option("to read too")
@sign_key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def ls(directory: Path, local_dirs: tuple[Path, ...], signing: Signing | None, as_json: bool) -> int:
    """List the steps in DIR: time, size, number of ranks, place of the parts, and state.

    Complete means: every part that the manifest names is there. Its length, header and index are checked, and with a
    key its signature. `deeppart verify` checks the bytes. Exit code 0 if there is a step that can be restored, else 1.

    Steps that are only on nodes are not in DIR. Use --local on the node to list them too.
    """
    listing = list_directory(directory, local_dirs, signing)
    if as_json:
        steps = [record_json(step, "step", "is_restorable") for step in listing.steps]
        print_json({"directory": str(directory), **to_json(listing), "steps": steps})
    else:
        _print(directory, listing)
        if not local_dirs and _may_be_on_nodes(listing):
            console().print("there may be more on nodes: use --local DIR, with the local_dir of the job")
    return GOOD if any(step.is_restorable for step in listing.steps) else NOT_GOOD


def owner_line(owner: Owner | None) -> str | None:
    """A line for people about the owner of a directory; None if no job is running."""
    if owner is None or owner.running is False:
        return None
    verb = "in use by" if owner.running else "perhaps in use (the file system has no locks): last taken by"
    return printable(f"{verb} {owner.who}, since {moment(owner.since)}")


def _print(directory: Path, listing: Listing) -> None:
    out = console()
    if listing.steps:
        left = ("created (UTC)", "parts at", "state")
        listed = table("step", "ranks", "size", "raw", *left, left=left)
        names = step_names(step.key for step in listing.steps)
        for step in listing.steps:
            state = state_text(step.state)
            if step.reasons:
                state.append(printable(f": {some(step.reasons, 3)}"), "default not bold")
            if step.suspect:
                leaves = some([leaf.path for leaf in step.suspect], 3)
                state.append(printable(f"; suspect: {leaves}"), "yellow not bold")
            listed.add_row(
                names[step.key],
                str(step.attempt.world_size) if step.attempt else "?",
                show_bytes(step.nbytes),
                "?" if step.raw_bytes is None else show_bytes(step.raw_bytes),
                moment(step.created),
                _places(step),
                state,
            )
        out.print(listed)
    else:
        out.print(f"no steps in {printable(str(directory))}")
    if line := owner_line(listing.owner):
        out.print(line)
    for lines, steps in _reduced(listing).items():
        what = "step" if len(steps) == 1 else "steps"
        out.print(printable(f"less protection than asked for: {what} {', '.join(map(str, steps))}: {'; '.join(lines)}"))
    for problem in listing.problems:
        out.print(printable(f"note: {problem}"))


def _may_be_on_nodes(listing: Listing) -> bool:
    """True if listing nodes could change the state of the newest step: there is none, or it is not complete.

    Where the newest step is whole nothing tells that the job has a ``local_dir`` at all.
    """
    return not listing.steps or listing.steps[-1].state in (UNFINISHED_STATE, DAMAGED)


def _reduced(listing: Listing) -> dict[tuple[str, ...], list[int]]:
    """Reduced protection -> the steps that were saved with it."""
    found: dict[tuple[str, ...], list[int]] = {}
    for step in listing.steps:
        if step.reduced:
            found.setdefault(step.reduced, []).append(step.step)
    return found


def _places(step: StepSummary) -> str:
    """``local 2/4, partner 2/4, persistent``."""
    texts = []
    for level in LEVELS:
        found = len(step.found(level))
        if found:
            expected = step.attempt.world_size if step.attempt and (level != Level.PERSISTENT or step.created) else None
            texts.append(level if found == expected else f"{level} {found}/{expected or '?'}")
    return ", ".join(texts)
