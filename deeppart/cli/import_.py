"""``deeppart import``: a checkpoint of another library as a committed step."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import click

from deeppart.cli.commands import GOOD, print_json, printable
from deeppart.cli.options import local_path
from deeppart.cli.output import console, count, progress_bar, to_json
from deeppart.errors import DeeppartWarning
from deeppart.interop.formats import SOURCES
from deeppart.model import show_bytes


@click.command(name="import", short_help="Make a step of DCP, torch.save, safetensors or HDF5.")
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
@click.option(
    "--keys", metavar="GLOB", multiple=True, help="Only paths that match GLOB: model, '*.bias'. May be repeated."
)
@click.option("--sign-key-file", "key_file", metavar="FILE", type=click.Path(), help="Sign the step with this key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def import_(
    source: Path,
    directory: Path,
    form: str,
    step: int | None,
    keys: tuple[str, ...],
    key_file: str | None,
    as_json: bool,
) -> int:
    """Make a committed step in DIR of SOURCE: a DCP directory, a file of torch.save, a safetensors file, a directory
    of them as Hugging Face has it, or an HDF5 file.

    Nothing that SOURCE names is executed. The step appears when all of it is written. DIR is made if it is not there.
    """
    from deeppart.interop.importing import import_checkpoint  # imports torch: completion need not wait for it

    began, screen = time.monotonic(), console()
    with progress_bar(screen, shown=not as_json) as progress, warnings.catch_warnings():
        if as_json:
            warnings.simplefilter("ignore", DeeppartWarning)
        task = progress.add_task(source.name, total=None)
        done = import_checkpoint(
            source,
            directory,
            form=None if form == "auto" else form,
            step=step,
            keys=keys or None,
            sign_key_file=key_file,
            progress=lambda nbytes, total: progress.update(task, completed=nbytes, total=total),
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json({**to_json(done), "seconds": round(seconds, 6)})
        return GOOD
    what = f"{count(done.leaves, 'leaf')} and {count(done.values, 'value')}, {show_bytes(done.nbytes)}"
    come = f"{what} from {count(done.files, 'file')} ({done.form})"
    screen.print(printable(f"step {done.step} of {done.directory}: {come} in {seconds:.2f} s"), soft_wrap=True)
    for remark in done.remarks:
        screen.print(printable(remark), style="yellow", soft_wrap=True)
    return GOOD
