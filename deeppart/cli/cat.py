"""``deeppart cat``: one leaf or small value, as numpy prints it, as JSON, or as bytes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from deeppart import offline
from deeppart.cli.commands import printable
from deeppart.cli.options import directory_argument, rank_option, sign_key_option, step_option
from deeppart.cli.output import PlainConsole, Shown, command, unchecked_line, value_text, wants_json
from deeppart.part import Signing


def _warn(found: offline.Found) -> None:
    """Print remarks on stderr; stdout has only the content."""
    err = PlainConsole(stderr=True)
    lines = list(found.remarks)
    if any(each.own for each in found.leaves):
        lines.append(f"of what each rank saved for itself, this is rank {found.rank}'s")
    if not found.signature_checked and found.manifest.signed:
        lines.append(unchecked_line(found.manifest.attempt.step))
    for line in lines:
        err.print(printable(line), style="yellow", soft_wrap=True)


# --- bytes ----------------------------------------------------------------------------------------------------------


def _bytes(found: offline.Found, form: str) -> list[bytes | memoryview]:
    item = found.leaves[0] if len(found.leaves) == 1 else None
    if not isinstance(item, offline.ReadLeaf):
        what = f"{len(found.leaves)} leaves and values" if item is None else "a small value"
        raise click.UsageError(f"--{form} is for one tensor or array, and KEY is {what}")
    if form == "raw":
        return [item.octets()]
    import numpy as np

    array = item.as_numpy()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return [header.getvalue(), array.reshape(-1).view(np.uint8).data]


# --- text -----------------------------------------------------------------------------------------------------------


def _print(found: offline.Found, *, is_full: bool) -> None:
    if not found.leaves:
        click.echo("(there is nothing in it)")
    for item in found.leaves:
        lines = _text(item, is_full=is_full, is_alone=not found.is_container).split("\n")
        if found.is_container:
            if isinstance(item, offline.ReadLeaf):
                click.echo(printable(f"{item.path}  {item.type}"))
            else:
                lines[0] = f"{printable(item.path)}  = {lines[0]}"
        for line in lines:
            click.echo(printable(line))


def _text(item: offline.ReadLeaf | offline.ReadValue, *, is_full: bool, is_alone: bool) -> str:
    import numpy as np

    if isinstance(item, offline.ReadValue):
        if is_full:
            return _full_text(item.value)
        return value_text(item.value, item.form, is_alone=is_alone)
    array = item.as_numpy()
    if is_full:
        return np.array2string(array, threshold=sys.maxsize, floatmode="unique")
    return np.array2string(array)


def _full_text(value: object) -> str:
    return hex(value) if type(value) is int and value.bit_length() > 64 else repr(value)


@command("Print one leaf.")
@directory_argument
@click.argument("key", metavar="KEY")
@step_option("Which step; the newest commit if left out.")
@rank_option("Rank whose copy of a per-rank leaf is printed; 0 if left out.", default=0)
@sign_key_option
@click.option("--full", is_flag=True, help="All elements, in all digits.")
@click.option("--npy", "as_npy", is_flag=True, help="Write a .npy file to stdout, for numpy.load.")
@click.option("--raw", "as_raw", is_flag=True, help="Write the bytes of the elements to stdout, in C order.")
def cat(
    directory: Path,
    key: str,
    step: int | None,
    rank: int,
    signing: Signing | None,
    full: bool,
    as_npy: bool,
    as_raw: bool,
) -> Shown:
    """Print a tensor, an array or a small value of a checkpoint in DIR, or all that is in a small container.

    KEY is a path as `deeppart show` prints it, or a glob that matches one leaf or value: model/0.weight '*.bias'. The
    digests of all chunks that are read are checked first. Exit code 1 if nothing is there, or it is damaged.
    """
    chosen = {"npy": as_npy, "raw": as_raw, "json": wants_json(), "full": full}
    forms = [name for name, is_set in chosen.items() if is_set]
    if len(forms) > 1:
        raise click.UsageError(f"--{' and --'.join(forms)} exclude each other")
    if (as_npy or as_raw) and sys.stdout.isatty():
        raise click.UsageError(f"--{forms[0]} writes bytes: send them to a file or a pipe")

    found = offline.read_single(directory, key, step, rank, signing)
    if wants_json():
        return Shown(found, lambda found: ())
    octets = _bytes(found, forms[0]) if as_npy or as_raw else []
    _warn(found)
    for piece in octets:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()  # here, where a closed pipe is handled
    if not octets:
        _print(found, is_full=full)
    return Shown(found, None)
