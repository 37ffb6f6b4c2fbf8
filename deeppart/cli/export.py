"""``deeppart export``: a checkpoint as one HDF5 file."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import click

from deeppart.cli.commands import GOOD, print_json
from deeppart.cli.options import SIGN_KEY_HELP, directory_argument, rank_option, step_option
from deeppart.cli.output import console, count
from deeppart.cli.progress import progress_bar
from deeppart.cli.text import printable
from deeppart.errors import DeeppartWarning
from deeppart.model.units import show_bytes
from deeppart.offline.inspect.listing import require_directory


@click.command(short_help="Write a checkpoint into one HDF5 file.")
@directory_argument
@click.argument("out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@step_option("Which step; the newest commit if left out.")
@click.option(
    "--keys", metavar="GLOB", multiple=True, help="Only paths that match GLOB: model, '*.bias'. May be repeated."
)
@rank_option("Rank whose per-rank leaves are written; 0 if left out.", default=0)
@click.option("--sign-key-file", "key_files", metavar="FILE", type=click.Path(), multiple=True, help=SIGN_KEY_HELP)
@click.option("--overwrite", is_flag=True, help="Replace FILE if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def export(
    directory: Path,
    out: Path,
    step: int | None,
    keys: tuple[str, ...],
    rank: int,
    key_files: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write a step of DIR into the HDF5 archive FILE, which can be read without deeppart.

    Every digest is checked while the data is read; FILE appears when it is complete. Nested containers are groups,
    leaves are data sets. Works while a job is running there.
    """
    from deeppart.offline.export import export as export_archive  # imports torch: completion need not wait for it

    require_directory(directory)
    began, screen = time.monotonic(), console()
    with progress_bar(screen, shown=not as_json) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeeppartWarning)  # they are among the remarks
        task = progress.add_task(out.name, total=None)
        done = export_archive(
            directory,
            out,
            step=step,
            keys=keys or None,
            rank=rank,
            overwrite=overwrite,
            sign_key_file=key_files,
            progress=lambda nbytes, total: progress.update(task, completed=nbytes, total=total),
        )
    seconds = time.monotonic() - began
    if as_json:
        document = {
            "file": str(done.path),
            "step": done.step,
            "rank": done.rank,
            "leaves": done.leaves,
            "values": done.values,
            "per_rank": done.per_rank,
            "bytes": done.nbytes,
            "file_bytes": done.file_bytes,
            "seconds": round(seconds, 6),
            "remarks": list(done.remarks),
        }
        print_json(document)
        return GOOD
    what = f"{count(done.leaves, 'leaf')} and {count(done.values, 'value')}, {show_bytes(done.nbytes)}"
    screen.print(printable(f"step {done.step}: {what} written to {done.path} in {seconds:.2f} s"), soft_wrap=True)
    for remark in done.remarks:
        screen.print(printable(remark), style="yellow", soft_wrap=True)
    if done.per_rank:
        screen.print(f"{done.per_rank:,} of them {'is' if done.per_rank == 1 else 'are'} rank {done.rank}'s own")
    return GOOD
