"""``deeppart prune``: remove steps that are no longer wanted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json, printable
from deeppart.cli.ls import owner_line
from deeppart.cli.options import directory_argument, local_option, sign_key_option
from deeppart.cli.output import console, count, state_text, step_names, table, to_json, unchecked_line
from deeppart.errors import CheckpointError
from deeppart.model import StepKey, show_bytes
from deeppart.offline.inspect.ownership import hold_directory, read_owner
from deeppart.offline.inspect.pruning import PrunePlan, PruneResult, Selection, plan_prune
from deeppart.offline.inspect.pruning import prune as prune_planned
from deeppart.part import Signing

_STEP = click.IntRange(min=0)


@click.command(short_help="Remove steps no longer wanted.")
@directory_argument
@click.option("--keep", metavar="N", type=click.IntRange(min=1), help="All but the N complete steps committed last.")
@click.option("--after", metavar="STEP", type=_STEP, help="Committed steps newer than STEP: to go back to STEP.")
@click.option("--before", metavar="STEP", type=_STEP, help="Committed steps older than STEP.")
@click.option("--incomplete", is_flag=True, help="Also steps that were never committed.")
@local_option("to remove the same steps from")
@sign_key_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--allow-empty", is_flag=True, help="Even if no complete checkpoint is left.")
@click.option(
    "--no-lock", is_flag=True, help="For file systems without locks: you are sure that no job is running there."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Never asks: see --yes.")
def prune(
    directory: Path,
    local_dirs: tuple[Path, ...],
    signing: Signing | None,
    dry_run: bool,
    yes: bool,
    no_lock: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Remove steps from DIR. Options that select limit each other: --keep 3 --before 1000 removes steps that are
    older than step 1000 and not among the last three. Only --incomplete adds to the others.

    It refuses while a job is running there, and if no complete checkpoint would be left. Only deeppart's own files are
    removed. With a key, only steps that are signed with it count as complete. Exit code 1 if something could not be
    removed, or if you answered no.
    """
    selection = Selection(**options)
    _check(selection, local_dirs)
    plan = plan_prune(directory, selection, local_dirs, signing)
    if dry_run:
        return _dry_run(directory, plan, signing, as_json)
    if plan.remove and not yes:
        if as_json or not _can_ask():
            raise click.UsageError("there is nobody to ask: use --yes or --dry-run")
        with hold_directory(directory, without_lock=no_lock):
            pass  # a refusal comes before the question, and jobs are not kept out while it is being thought about
        _print_plan(plan)
        _print_signatures(plan, signing)
        if not click.confirm(f"Remove {count(len(plan.remove), 'step')} ({show_bytes(plan.nbytes)})?", err=True):
            return NOT_GOOD
    result = PruneResult((), {}, ())
    if plan.remove:
        with hold_directory(directory, without_lock=no_lock):
            if plan_prune(directory, selection, local_dirs, signing) != plan:
                raise CheckpointError(
                    "the directory has changed since you were asked; nothing was removed",
                    where=str(directory),
                    todo="look again",
                )
            result = prune_planned(plan)
    if as_json:
        print_json(_document(directory, plan, result, signing, dry_run=False))
    else:
        _print_result(plan, result)
        if yes or not plan.remove:  # otherwise it stood before the question
            _print_signatures(plan, signing)
    return NOT_GOOD if result.failed else GOOD


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _check(selection: Selection, local_dirs: tuple[Path, ...]) -> None:
    if not (selection.wants_committed or selection.incomplete):
        raise click.UsageError("say what to remove: --keep, --after, --before or --incomplete")
    if selection.keep is not None and selection.after is not None:
        raise click.UsageError("--keep and --after exclude each other")
    if selection.after is not None and selection.before is not None and selection.after >= selection.before - 1:
        raise click.UsageError(f"no step is newer than {selection.after} and older than {selection.before}")
    if local_dirs and not selection.wants_committed:
        raise click.UsageError("--local goes with --keep, --after or --before")


def _dry_run(directory: Path, plan: PrunePlan, signing: Signing | None, as_json: bool) -> int:
    if as_json:
        print_json(_document(directory, plan, PruneResult((), {}, ()), signing, dry_run=True))
        return GOOD
    _print_plan(plan)
    out = console()
    out.print(f"would remove {count(len(plan.remove), 'step')} ({show_bytes(plan.nbytes)}); {_kept(plan)}")
    _print_signatures(plan, signing)
    owner = read_owner(directory)
    line = owner_line(owner)
    if plan.remove and owner is not None and line is not None:
        obstacle = "be refused" if owner.running else "need --no-lock"
        out.print(f"without --dry-run this would {obstacle}: the directory is {line}")
    return GOOD


def _document(
    directory: Path, plan: PrunePlan, result: PruneResult, signing: Signing | None, *, dry_run: bool
) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "dry_run": dry_run,
        "owner": to_json(read_owner(directory)),
        **to_json(plan),
        **to_json(result),
        "signatures_checked": signing is not None,
    }


def _print_plan(plan: PrunePlan) -> None:
    if not plan.remove:
        return
    shown = table("step", "size", "state", "directories", left=("state", "directories"))
    names = _names(plan)
    for removal in plan.remove:
        places = "\n".join(printable(str(place)) for place in removal.directories)
        shown.add_row(names[removal.key], show_bytes(removal.nbytes), state_text(removal.state or "local only"), places)
    console().print(shown)


def _print_signatures(plan: PrunePlan, signing: Signing | None) -> None:
    """Print which signatures were not checked, and which steps did not count."""
    lines = [unchecked_line(*plan.signed)] if signing is None and plan.signed else []
    for line in (*lines, *plan.problems):
        console().print(printable(line), style="yellow", soft_wrap=True)


def _print_result(plan: PrunePlan, result: PruneResult) -> None:
    out = console()
    if not plan.remove:
        out.print(f"nothing to remove; {_kept(plan)}")
        return
    freed = sum(removal.nbytes for removal in plan.remove if removal.key in result.removed)
    out.print(f"removed {count(len(result.removed), 'step')} ({show_bytes(freed)}); {_kept(plan)}")
    names = _names(plan)
    for key, reason in result.failed.items():
        out.print(printable(f"step {names[key]} could not be removed: {reason}"), style="red")
    for place in result.left:
        out.print(printable(f"{place} stays: it holds files that are not deeppart's"))


def _names(plan: PrunePlan) -> dict[StepKey, str]:
    return step_names([*(removal.key for removal in plan.remove), *plan.kept])


def _kept(plan: PrunePlan) -> str:
    if not plan.kept:
        return "no step stays"
    names = _names(plan)
    more = ", ..." if len(plan.kept) > 8 else ""
    noun = "step" if len(plan.kept) == 1 else "steps"
    return f"{noun} {', '.join(names[key] for key in plan.kept[:8])}{more} {'stays' if len(plan.kept) == 1 else 'stay'}"
