"""``deeppart import``: makes a committed step from another library's checkpoint."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deeppart.cli.options import keys_option, local_path
from deeppart.cli.output import command, count, counts, line, progress, wants_json
from deeppart.errors import DeeppartWarning
from deeppart.interop.formats import SOURCES
from deeppart.model import show_bytes


def _lines(done: Any) -> Iterator[Any]:
    what = f"{counts(done)}, {show_bytes(done.nbytes)}"
    source = f"{count(done.files, 'file')} ({done.form})"
    yield line(f"step {done.step} of {done.directory}: {what} from {source} in {done.seconds:.2f} s")
    for remark in done.remarks:
        yield line(remark, "yellow")


@command("Make a step of DCP, torch.save, safetensors or HDF5.", _lines, name="import")
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path), callback=local_path)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path), callback=local_path)
@click.option(
    "--from",
    "form",
    type=click.Choice(("auto", *SOURCES)),
    default="auto",
    help="What SOURCE is; found out if left out.",
)
@click.option("--step", type=click.IntRange(min=0), help="Number of the step; 0 if left out and DIR has none.")
@keys_option
@click.option("--sign-key-file", "key_file", metavar="FILE", type=click.Path(), help="Sign the step with this key.")
def import_(
    source: Path,
    directory: Path,
    form: str,
    step: int | None,
    keys: tuple[str, ...],
    key_file: str | None,
) -> Any:
    """Make a committed step in DIR of SOURCE: a DCP directory, a file of torch.save, a safetensors file, a directory
    of them as Hugging Face has it, or an HDF5 archive of `deeppart export`.

    Nothing that SOURCE names is executed. The step appears when all of it is written. DIR is made if it is not there.
    """
    from deeppart.interop.importing import import_checkpoint  # imports torch; here, so that completion stays fast

    began = time.monotonic()
    with progress(source.name) as bar, warnings.catch_warnings():
        if wants_json():
            warnings.simplefilter("ignore", DeeppartWarning)
        done = import_checkpoint(
            source,
            directory,
            form=None if form == "auto" else form,
            step=step,
            keys=keys or None,
            sign_key_file=key_file,
            progress=bar,
        )
    return replace(done, seconds=round(time.monotonic() - began, 6))
