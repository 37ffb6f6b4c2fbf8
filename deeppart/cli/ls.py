"""``deeppart ls``: the steps in a directory, and whether they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deeppart import offline
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.cli.output import command, line, table_of
from deeppart.part import Signing


def _lines(listing: offline.Listing) -> Iterator[Any]:
    yield table_of(listing.steps) if listing.steps else line(f"no steps in {listing.directory}")
    if listing.owner is not None and listing.owner.line:
        yield line(listing.owner.line)
    for problem in listing.problems:
        yield line(f"note: {problem}")
    if listing.may_be_on_nodes:
        yield line("there may be more on nodes: use --local DIR, with the local_dir of the job")


@command("List the steps; say whether they are complete.", _lines)
@directory_argument
@local_option("to read too")
@sign_key_option
def ls(directory: Path, local_dirs: tuple[Path, ...], signing: Signing | None) -> offline.Listing:
    """List the steps in DIR: time, size, number of ranks, place of the parts, and state.

    Complete means: every part that the manifest names is there. Its length, header and index are checked, and with a
    key its signature. `deeppart verify` checks the bytes. Exit code 0 if there is a step that can be restored, else 1.

    Steps that are only on nodes are not in DIR. Use --local on the node to list them too.
    """
    return offline.list_directory(directory, local_dirs, signing)
