"""Leaves and values as ``deeppart cat`` prints them: as numpy does, as JSON, or as bytes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from deeppart.cli.commands import GOOD, print_json, printable
from deeppart.cli.output import PlainConsole, manifest_json, to_json, unchecked_line
from deeppart.cli.values import json_value, long_text, value_text
from deeppart.errors import StateError
from deeppart.offline.elements import as_numpy, octets_of
from deeppart.offline.inspect.listing import require_directory
from deeppart.offline.single import Found, Item, read_single
from deeppart.part import Signing

#: JSON of more elements would be no use to its reader, and takes 100 times their memory.
_MOST_JSON_ELEMENTS = 10_000_000


def show_leaves(directory: Path, key: str, step: int | None, rank: int, signing: Signing | None, *, form: str) -> int:
    """Print what is at a path; returns the exit code."""
    require_directory(directory)
    found = read_single(directory, key, step, rank, signing)
    if form in ("npy", "raw"):
        octets = _bytes(found, form)
        _tell(found, rank, signing)
        for piece in octets:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()  # here, where a pipe that has closed is no error
    elif form == "json":
        print_json(_document(directory, found, rank, signing))
    else:
        _tell(found, rank, signing)
        _print(found, is_full=form == "full")
    return GOOD


def _tell(found: Found, rank: int, signing: Signing | None) -> None:
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


def _bytes(found: Found, form: str) -> list[bytes | memoryview]:
    item = found.items[0] if len(found.items) == 1 else None
    if item is None or item.kind is None:
        what = f"{len(found.items)} leaves and values" if item is None else "a small value"
        raise click.UsageError(f"--{form} is for one tensor or array, and KEY is {what}")
    if form == "raw":
        return [octets_of(item.content).data]
    array = as_numpy(item.content, item.kind)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return [header.getvalue(), array.reshape(-1).view(np.uint8).data]


# --- JSON -----------------------------------------------------------------------------------------------------------


def _document(directory: Path, found: Found, rank: int, signing: Signing | None) -> dict[str, Any]:
    return {
        **manifest_json(found.manifest),
        "directory": str(directory),
        "rank": rank,
        "signature_checked": signing is not None,
        "leaves": [_item_json(item) for item in found.items],
        "remarks": list(found.remarks),
    }


def _item_json(item: Item) -> dict[str, Any]:
    shown = {"path": item.path, "own": item.own, "form": item.form}
    if item.kind is None:
        return {"kind": "value", **shown, "type": type(item.content).__name__, "value": json_value(item.content)}
    array = as_numpy(item.content, item.kind)
    if array.size > _MOST_JSON_ELEMENTS:
        raise StateError(
            "a leaf has too many elements for JSON",
            expected=f"at most {_MOST_JSON_ELEMENTS}",
            found=f"{array.size} of {item.kind}",
            where=f"path {item.path}",
            todo="take the bytes (--npy, --raw)",
        )
    return {"kind": "leaf", **shown, "type": to_json(item.kind), "data": _json_elements(array)}


def _json_elements(array: npt.NDArray[Any]) -> Any:
    """Nested lists of what JSON has exactly, else of Python's notation; times as numpy writes them."""
    if array.dtype.kind in "mM":
        return array.astype(np.str_).tolist()
    is_plain = array.dtype.kind in "bi" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))
    return array.tolist() if is_plain and array.dtype.itemsize <= 8 else _nested(array.tolist())


def _nested(items: Any) -> Any:
    return list(map(_nested, items)) if isinstance(items, list) else json_value(items)


# --- for people -----------------------------------------------------------------------------------------------------


def _print(found: Found, *, is_full: bool) -> None:
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


def _text(item: Item, *, is_full: bool, is_alone: bool) -> str:
    if item.kind is None:
        if is_full:
            return _full_text(item.content)
        return (long_text if is_alone else value_text)(item.content, item.form)
    array = as_numpy(item.content, item.kind)
    if is_full:
        return np.array2string(array, threshold=sys.maxsize, floatmode="unique")
    return np.array2string(array)


def _full_text(value: Any) -> str:
    return hex(value) if type(value) is int and value.bit_length() > 64 else repr(value)
