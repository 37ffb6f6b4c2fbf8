"""``deeppart ls``: the steps in a directory, and whether they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from deeppart import offline
from deeppart.cli.commands import GOOD, NOT_GOOD
from deeppart.cli.options import directory_argument, json_option, local_option, sign_key_option
from deeppart.cli.output import line, render, table_of
from deeppart.part import Signing


@click.command(short_help="List the steps; say whether they are complete.")
@directory_argument
@local_option("to read too")
@sign_key_option
@json_option
def ls(directory: Path, local_dirs: tuple[Path, ...], signing: Signing | None, as_json: bool) -> int:
    """List the steps in DIR: time, size, number of ranks, place of the parts, and state.

    Complete means: every part that the manifest names is there. Its length, header and index are checked, and with a
    key its signature. `deeppart verify` checks the bytes. Exit code 0 if there is a step that can be restored, else 1.

    Steps that are only on nodes are not in DIR. Use --local on the node to list them too.
    """
    listing = offline.list_directory(directory, local_dirs, signing)
    render(listing, as_json, _lines)
    if not as_json and not local_dirs and listing.may_be_on_nodes:
        click.echo("there may be more on nodes: use --local DIR, with the local_dir of the job")
    return GOOD if any(step.is_restorable for step in listing.steps) else NOT_GOOD


def _lines(listing: offline.Listing) -> Iterator[Any]:
    yield table_of(listing.steps) if listing.steps else line(f"no steps in {listing.directory}")
    if listing.owner is not None and listing.owner.line:
        yield line(listing.owner.line)
    for lines, steps in listing.reduced.items():
        what = "step" if len(steps) == 1 else "steps"
        yield line(f"less protection than asked for: {what} {', '.join(map(str, steps))}: {'; '.join(lines)}")
    for problem in listing.problems:
        yield line(f"note: {problem}")
