"""``deeppart show``: the tree of leaves in one checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from deeppart.cli.options import directory_argument, sign_key_option, step_option
from deeppart.part import Signing


@click.command(short_help="Show the content of a checkpoint.")
@directory_argument
@click.argument("keys", metavar="[KEYS]...", nargs=-1)
@step_option("Which step; the newest with a sound manifest if left out.")
@sign_key_option
@click.option("--stats", is_flag=True, help="Read the elements too: smallest, largest, mean, deviation, zeros, NaNs.")
@click.option("--flat", is_flag=True, help="One line per leaf instead of a tree.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(
    directory: Path,
    keys: tuple[str, ...],
    step: int | None,
    signing: Signing | None,
    stats: bool,
    flat: bool,
    as_json: bool,
) -> int:
    """Show the content of a checkpoint in DIR: paths, dtypes, shapes, bytes, and the parts with these bytes.

    KEYS are globs over paths, as for deeppart.load: model '*.bias'. Reads the manifest and indexes, and no chunk
    without --stats. Exit code 1 if something cannot be read, or there is nothing to show.
    """
    from deeppart.cli.contents import show_contents  # imports torch, which completion need not wait for

    return show_contents(directory, keys, step, signing, flat=flat, stats=stats, as_json=as_json)
