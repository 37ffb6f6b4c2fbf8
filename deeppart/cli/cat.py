"""``deeppart cat``: one leaf or small value."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deeppart.cli.options import directory_argument, rank_option, sign_key_option, step_option
from deeppart.part import Signing


@click.command(short_help="Print one leaf.")
@directory_argument
@click.argument("key", metavar="KEY")
@step_option("Which step; the newest commit if left out.")
@rank_option("Rank whose copy of a per-rank leaf is printed; 0 if left out.", default=0)
@sign_key_option
@click.option("--full", is_flag=True, help="All elements, in all digits.")
@click.option("--npy", "as_npy", is_flag=True, help="Write a .npy file to stdout, for numpy.load.")
@click.option("--raw", "as_raw", is_flag=True, help="Write the bytes of the elements to stdout, in C order.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def cat(
    directory: Path,
    key: str,
    step: int | None,
    rank: int,
    signing: Signing | None,
    full: bool,
    as_npy: bool,
    as_raw: bool,
    as_json: bool,
) -> int:
    """Print a tensor, an array or a small value of a checkpoint in DIR, or all that is in a small container.

    KEY is a path as `deeppart show` prints it, or a glob that matches one leaf or value: model/0.weight '*.bias'. The
    digests of all chunks that are read are checked first. Exit code 1 if nothing is there, or it is damaged.
    """
    forms = [name for name, is_set in (("npy", as_npy), ("raw", as_raw), ("json", as_json), ("full", full)) if is_set]
    if len(forms) > 1:
        raise click.UsageError(f"--{' and --'.join(forms)} exclude each other")
    if (as_npy or as_raw) and sys.stdout.isatty():
        raise click.UsageError(f"--{forms[0]} writes bytes: send them to a file or a pipe")

    from deeppart.cli.leaves import show_leaves  # imports torch, which completion need not wait for

    return show_leaves(directory, key, step, rank, signing, form=forms[0] if forms else "text")
