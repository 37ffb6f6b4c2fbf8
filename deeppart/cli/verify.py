"""``deeppart verify``: every byte, every digest, and the names of what is damaged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from deeppart.cli.ls import owner_document, owner_line
from deeppart.cli.output import GOOD, NOT_GOOD, console, count, print_json, printable, size, state_text
from deeppart.inspecting.naming import DamagedLeaf
from deeppart.inspecting.ownership import Owner, read_owner
from deeppart.inspecting.verifying import Damage, Verdict, choose_steps
from deeppart.inspecting.verifying import verify as verify_subject

#: Leaves printed per damaged place; --json has all of them.
_MOST_LEAVES = 20


@click.command(short_help="Check every byte of a checkpoint.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="Which step; the newest commit if left out.")
@click.option("--all", "every", is_flag=True, help="Every step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify(directory: Path, step: int | None, every: bool, as_json: bool) -> int:
    """Read all of a checkpoint in DIR and check every digest.

    Goes on after damage, and names the leaves it hits. Exit code 1 if anything is damaged or incomplete.
    """
    if every and step is not None:
        raise click.UsageError("--step and --all exclude each other")
    owner = read_owner(directory)
    timed: list[tuple[Verdict, float]] = []
    out = console()
    subjects = choose_steps(directory, step, every=every)
    with _progress(out, shown=not as_json) as progress:
        task = progress.add_task("", total=sum(subject.nbytes for subject in subjects))
        for subject in subjects:
            progress.update(task, description=f"step {subject.step}")
            began = time.monotonic()
            verdict = verify_subject(subject, lambda nbytes: progress.advance(task, nbytes))
            timed.append((verdict, time.monotonic() - began))
            if not as_json:
                _print(out, *timed[-1])
    if as_json:
        print_json(_document(directory, timed, owner))
    elif line := owner_line(owner):
        out.print(line)
    return GOOD if all(_is_good(verdict, owner) for verdict, _ in timed) else NOT_GOOD


def _is_good(verdict: Verdict, owner: Owner | None) -> bool:
    """Sound; or on its way in or out while a job is running."""
    if owner is not None and owner.running and verdict.state == "unfinished":
        return True
    return verdict.state in ("sound", "removed")


def _progress(console: Console, *, shown: bool) -> Progress:
    """The bar, where the output is a terminal; it is gone in the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


def _document(directory: Path, timed: list[tuple[Verdict, float]], owner: Owner | None) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "good": all(_is_good(verdict, owner) for verdict, _ in timed),
        "owner": owner_document(owner),
        "steps": [
            {
                "step": verdict.step,
                "state": verdict.state,
                "parts": verdict.parts,
                "bytes": verdict.nbytes,
                "raw_bytes": verdict.raw_bytes,
                "seconds": round(seconds, 6),
                "damaged_leaves": list(verdict.damaged_leaves),
                "damage": [_damage_document(damage) for damage in verdict.damage],
            }
            for verdict, seconds in timed
        ],
    }


def _damage_document(damage: Damage) -> dict[str, Any]:
    return {
        "kind": damage.kind,
        "message": damage.message,
        "file": damage.file,
        "part": damage.rank,
        "start": damage.start,
        "stop": damage.stop,
        "leaves": [
            {"path": leaf.path, "rank": leaf.rank, "start": leaf.start, "stop": leaf.stop} for leaf in damage.leaves
        ],
    }


def _print(out: Console, verdict: Verdict, seconds: float) -> None:
    line = Text.assemble((f"step {verdict.step}", "bold"), "  ", state_text(verdict.state))
    if verdict.parts:
        rate = f", {size(round(verdict.nbytes / seconds))}/s" if seconds > 0 else ""
        line.append(f"  {count(verdict.parts, 'part')}, {size(verdict.nbytes)} read in {seconds:.2f} s{rate}")
    out.print(line)
    for damage in verdict.damage:
        out.print(Text("  " + printable(_place(damage) + damage.message), "red"), soft_wrap=True)
        for leaf in damage.leaves[:_MOST_LEAVES]:
            out.print(Text("    " + printable(_leaf(leaf))), soft_wrap=True)
        if len(damage.leaves) > _MOST_LEAVES:
            out.print(f"    and {count(len(damage.leaves) - _MOST_LEAVES, 'more leaf')}; --json lists all")
    if verdict.damaged_leaves:
        out.print(f"  {count(len(verdict.damaged_leaves), 'leaf')} damaged")


def _place(damage: Damage) -> str:
    if damage.file is None:
        return ""
    bytes_text = "" if damage.start is None else f", bytes {damage.start} to {damage.stop}"
    return f"{damage.file}{bytes_text}: "


def _leaf(leaf: DamagedLeaf) -> str:
    return leaf.name if leaf.start is None else f"{leaf.name}, bytes {leaf.start} to {leaf.stop}"
