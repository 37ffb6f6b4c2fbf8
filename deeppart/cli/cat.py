"""``deeppart cat``: one leaf or small value, as numpy prints it, as JSON, or as bytes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from deeppart import offline
from deeppart.cli.commands import GOOD, print_json, printable
from deeppart.cli.options import directory_argument, rank_option, sign_key_option, step_option
from deeppart.cli.output import PlainConsole, json_value, long_text, to_json, unchecked_line, value_text
from deeppart.errors import StateError
from deeppart.part import Signing

#: JSON of more elements would be no use to its reader, and takes 100 times their memory.
_MOST_JSON_ELEMENTS = 10_000_000


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

    found, form = offline.read_single(directory, key, step, rank, signing), forms[0] if forms else "text"
    if form in ("npy", "raw"):
        octets = _bytes(found, form)
        _warn(found, rank, signing)
        for piece in octets:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()  # here, where a pipe that has closed is no error
    elif form == "json":
        print_json(_document(directory, found, rank, signing))
    else:
        _warn(found, rank, signing)
        _print(found, is_full=form == "full")
    return GOOD


def _warn(found: offline.Found, rank: int, signing: Signing | None) -> None:
    """What people should know, on stderr: stdout has the content alone."""
    err = PlainConsole(stderr=True)
    lines = list(found.remarks)
    if any(item.own for item in found.items):
        lines.append(f"of what each rank saved for itself, this is rank {rank}'s")
    if signing is None and found.manifest.signed:
        lines.append(unchecked_line(found.manifest.attempt.step))
    for line in lines:
        err.print(printable(line), style="yellow", soft_wrap=True)


# --- bytes ----------------------------------------------------------------------------------------------------------


def _bytes(found: offline.Found, form: str) -> list[bytes | memoryview]:
    item = found.items[0] if len(found.items) == 1 else None
    if item is None or item.kind is None:
        what = f"{len(found.items)} leaves and values" if item is None else "a small value"
        raise click.UsageError(f"--{form} is for one tensor or array, and KEY is {what}")
    if form == "raw":
        return [item.octets()]
    import numpy as np

    array = item.as_numpy()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return [header.getvalue(), array.reshape(-1).view(np.uint8).data]


# --- JSON -----------------------------------------------------------------------------------------------------------


def _document(directory: Path, found: offline.Found, rank: int, signing: Signing | None) -> dict[str, Any]:
    return {
        **to_json(found.manifest),
        "directory": str(directory),
        "rank": rank,
        "signature_checked": signing is not None,
        "leaves": [_item_json(item) for item in found.items],
        "remarks": list(found.remarks),
    }


def _item_json(item: offline.Item) -> dict[str, Any]:
    shown = {"path": item.path, "own": item.own, "form": item.form}
    if item.kind is None:
        return {"kind": "value", **shown, "type": type(item.content).__name__, "value": json_value(item.content)}
    array = item.as_numpy()
    if array.size > _MOST_JSON_ELEMENTS:
        raise StateError(
            "a leaf has too many elements for JSON",
            expected=f"at most {_MOST_JSON_ELEMENTS}",
            found=f"{array.size} of {item.kind}",
            where=f"path {item.path}",
            todo="take the bytes (--npy, --raw)",
        )
    return {"kind": "leaf", **shown, "type": to_json(item.kind), "data": _json_elements(array)}


def _json_elements(array: Any) -> Any:
    """Nested lists of what JSON has exactly, else of Python's notation; times as numpy writes them."""
    import numpy as np

    if array.dtype.kind in "mM":
        return array.astype(np.str_).tolist()
    is_plain = array.dtype.kind in "bi" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))
    return array.tolist() if is_plain and array.dtype.itemsize <= 8 else _nested(array.tolist())


def _nested(items: Any) -> Any:
    return list(map(_nested, items)) if isinstance(items, list) else json_value(items)


# --- for people -----------------------------------------------------------------------------------------------------


def _print(found: offline.Found, *, is_full: bool) -> None:
    if not found.items:
        click.echo("(there is nothing in it)")
    for item in found.items:
        lines = _text(item, is_full=is_full, is_alone=not found.is_container).split("\n")
        if found.is_container:
            heading = printable(item.path if item.kind is None else f"{item.path}  {item.kind}")
            if item.kind is None:
                lines[0] = f"{heading}  = {lines[0]}"
            else:
                click.echo(heading)
        for line in lines:
            click.echo(printable(line))


def _text(item: offline.Item, *, is_full: bool, is_alone: bool) -> str:
    import numpy as np

    if item.kind is None:
        if is_full:
            return _full_text(item.content)
        return (long_text if is_alone else value_text)(item.content, item.form)
    array = item.as_numpy()
    if is_full:
        return np.array2string(array, threshold=sys.maxsize, floatmode="unique")
    return np.array2string(array)


def _full_text(value: Any) -> str:
    return hex(value) if type(value) is int and value.bit_length() > 64 else repr(value)
