"""``deeppart prune``: remove steps that are no longer wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deeppart import offline
from deeppart.cli.commands import NOT_GOOD
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.cli.output import Shown, command, count, line, render, table_of, unchecked_line, wants_json
from deeppart.errors import CheckpointError
from deeppart.model import show_bytes
from deeppart.part import Signing
from deeppart.storage import hold_directory

_STEP = click.IntRange(min=0)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _check(selection: offline.Selection, local_dirs: tuple[Path, ...]) -> None:
    if not (selection.wants_committed or selection.incomplete):
        raise click.UsageError("say what to remove: --keep, --after, --before or --incomplete")
    if selection.keep is not None and selection.after is not None:
        raise click.UsageError("--keep and --after exclude each other")
    if selection.after is not None and selection.before is not None and selection.after >= selection.before - 1:
        raise click.UsageError(f"no step is newer than {selection.after} and older than {selection.before}")
    if local_dirs and not selection.wants_committed:
        raise click.UsageError("--local goes with --keep, --after or --before")


def _dry_run_lines(plan: offline.PrunePlan) -> Iterator[Any]:
    if plan.remove:
        yield table_of(plan.remove)
    yield line(f"would remove {count(len(plan.remove), 'step')} ({show_bytes(plan.nbytes)}); {_kept(plan)}")
    yield from _signature_lines(plan)
    if plan.remove and plan.owner is not None and plan.owner.line:
        obstacle = "be refused" if plan.owner.running else "need --no-lock"
        yield line(f"without --dry-run this would {obstacle}: the directory is {plan.owner.line}")


def _signature_lines(plan: offline.PrunePlan) -> Iterator[Any]:
    """Lines about unchecked signatures and steps that did not count."""
    if plan.signed and not plan.signatures_checked:
        yield line(unchecked_line(*plan.signed), "yellow")
    for problem in plan.problems:
        yield line(problem, "yellow")


def _result_lines(plan: offline.PrunePlan) -> Iterator[Any]:
    if not plan.remove:
        yield line(f"nothing to remove; {_kept(plan)}")
        return
    freed = sum(removal.nbytes for removal in plan.remove if removal.key in plan.removed)
    yield line(f"removed {count(len(plan.removed), 'step')} ({show_bytes(freed)}); {_kept(plan)}")
    for key, reason in plan.failed.items():
        yield line(f"step {plan.names[key]} could not be removed: {reason}", "red")
    for place in plan.left:
        yield line(f"{place} stays: it holds files that are not deeppart's")


def _kept(plan: offline.PrunePlan) -> str:
    if not plan.kept:
        return "no step stays"
    more = ", ..." if len(plan.kept) > 8 else ""
    steps = f"{', '.join(plan.names[key] for key in plan.kept[:8])}{more}"
    return f"step {steps} stays" if len(plan.kept) == 1 else f"steps {steps} stay"


@command("Remove steps no longer wanted.")
@directory_argument
@click.option("--keep", metavar="N", type=click.IntRange(min=1), help="All but the N complete steps committed last.")
@click.option("--after", metavar="STEP", type=_STEP, help="Committed steps newer than STEP: to go back to STEP.")
@click.option("--before", metavar="STEP", type=_STEP, help="Committed steps older than STEP.")
@click.option("--incomplete", is_flag=True, help="Also steps that were never committed.")
@local_option("to remove the same steps from")
@sign_key_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed with --json.")
@click.option("--allow-empty", is_flag=True, help="Even if no complete checkpoint is left.")
@click.option(
    "--no-lock", is_flag=True, help="For file systems without locks: you are sure that no job is running there."
)
def prune(
    directory: Path,
    local_dirs: tuple[Path, ...],
    signing: Signing | None,
    dry_run: bool,
    yes: bool,
    no_lock: bool,
    **options: Any,
) -> Shown:
    """Remove steps from DIR. Options that select limit each other: --keep 3 --before 1000 removes steps that are
    older than step 1000 and not among the last three. Only --incomplete adds to the others.

    It refuses while a job is running there, and if no complete checkpoint would be left. Only deeppart's own files are
    removed. With a key, only steps that are signed with it count as complete. Exit code 1 if something could not be
    removed, or if you answered no.
    """
    selection = offline.Selection(**options)
    _check(selection, local_dirs)
    plan = offline.plan_prune(directory, selection, local_dirs, signing)
    if dry_run:
        return Shown(replace(plan, dry_run=True), _dry_run_lines)
    asked = plan.remove and not yes
    if asked:
        if wants_json() or not _can_ask():
            raise click.UsageError("there is nobody to ask: use --yes or --dry-run")
        with hold_directory(directory, without_lock=no_lock):
            pass  # refuse before asking, but do not keep jobs out while the user thinks
        render([table_of(plan.remove), *_signature_lines(plan)])
        if not click.confirm(f"Remove {count(len(plan.remove), 'step')} ({show_bytes(plan.nbytes)})?", err=True):
            raise click.exceptions.Exit(NOT_GOOD)
    if plan.remove:
        with hold_directory(directory, without_lock=no_lock):
            if offline.plan_prune(directory, selection, local_dirs, signing) != plan:
                raise CheckpointError(
                    "the directory has changed since you were asked; nothing was removed",
                    where=str(directory),
                    todo="look again",
                )
            plan = offline.prune(plan)
    return Shown(plan, lambda done: [*_result_lines(done), *([] if asked else _signature_lines(done))])
