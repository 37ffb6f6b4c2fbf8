"""``deeppart export``: writes a checkpoint in another format."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deeppart.cli.options import SIGN_KEY_HELP, directory_argument, keys_option, local_path, rank_option, step_option
from deeppart.cli.output import command, counts, line, progress
from deeppart.errors import DeeppartWarning
from deeppart.interop.formats import FORMATS, form_of, writer_for
from deeppart.model import read_bytes, show_bytes


def _read_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        found = int(read_bytes(int(value) if value.isdigit() else value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not {error}") from error
    if found < 1:
        raise click.BadParameter(f"{value!r} is not above 0")
    return found


def _lines(done: Any) -> Iterator[Any]:
    what = f"{counts(done)}, {show_bytes(done.nbytes)}"
    where = f"{done.path}" if done.form == "hdf5" else f"{done.path} ({done.form})"
    yield line(f"step {done.step}: {what} written to {where} in {done.seconds:.2f} s")
    for remark in done.remarks:
        yield line(remark, "yellow")
    if done.per_rank:
        yield line(f"{done.per_rank:,} of them {'is' if done.per_rank == 1 else 'are'} rank {done.rank}'s own")


@command("Write a checkpoint as HDF5, safetensors, torch.save or DCP.", _lines)
@directory_argument
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path), callback=local_path)
@click.option(
    "--to",
    "form",
    type=click.Choice(FORMATS),
    help="The format; if left out, that of OUT's ending: .h5, .hdf5, .safetensors, .pt, .pth.",
)
@step_option("Which step; the newest commit if left out.")
@keys_option
@click.option("--root", "inner", metavar="PATH", help="Only the content of the container at PATH, as if it were all.")
@rank_option("Rank whose per-rank leaves are written; 0 if left out.", default=0)
@click.option(
    "--max-shard-size",
    "max_shard_bytes",
    metavar="SIZE",
    callback=_read_size,
    help="Of a directory: most bytes in one file, such as 5GB.",
)
@click.option("--sign-key-file", "key_files", metavar="FILE", type=click.Path(), multiple=True, help=SIGN_KEY_HELP)
@click.option("--overwrite", is_flag=True, help="Replace OUT if there is one.")
def export(
    directory: Path,
    out: Path,
    form: str | None,
    max_shard_bytes: int | None,
    key_files: tuple[str, ...],
    keys: tuple[str, ...],
    **options: Any,
) -> Any:
    """Write a step of DIR into OUT, in a format that can be read without deeppart.

    Every digest is checked while the data is read; OUT appears when it is complete. OUT is a directory for dcp, and for
    safetensors unless it ends in .safetensors. Works while a job is running there.
    """
    from deeppart.extension.export import export as export_archive  # imports torch; here, so that completion stays fast

    writer = writer_for(form or form_of(out), out, max_shard_bytes)
    began = time.monotonic()
    with progress(out.name) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeeppartWarning)  # printed as remarks
        done = export_archive(
            directory, out, writer, keys=keys or None, sign_key_file=key_files, progress=bar, **options
        )
    return replace(done, seconds=round(time.monotonic() - began, 6))
