"""``deeppart verify``: every byte, every digest, the names of what is damaged, and its repair."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json, printable
from deeppart.cli.ls import owner_line
from deeppart.cli.options import directory_argument, local_option, sign_key_option, step_option
from deeppart.cli.output import (
    console,
    count,
    progress_bar,
    record_json,
    state_text,
    step_names,
    to_json,
    unchecked_line,
)
from deeppart.model import Attempt, SuspectLeaf, show_bytes
from deeppart.offline.inspect.node_files import NodeFiles, lineage_on_nodes, verify_nodes
from deeppart.offline.inspect.ownership import Owner, hold_directory, read_owner
from deeppart.part import Signing
from deeppart.storage.records import Suspicions, read_suspicions
from deeppart.storage.steps import list_steps, step_directory

if TYPE_CHECKING:  # these import torch, which completion need not wait for
    from deeppart.offline.inspect.cover import DamagedLeaf
    from deeppart.offline.inspect.repairing import Repaired
    from deeppart.offline.inspect.verifying import Damage, VerifyResult

#: Leaves printed per damaged place; --json has all of them.
_MOST_LEAVES = 20


@click.command(short_help="Check every byte of a checkpoint.")
@directory_argument
@step_option("Which step; the newest commit if left out.")
@click.option("--all", "every", is_flag=True, help="Every step.")
@local_option("to read too: its parts, copies and parity")
@sign_key_option
@click.option(
    "--repair", is_flag=True, help="Replace damaged files by sound copies, or compute them from parity and parts."
)
@click.option(
    "--no-lock",
    is_flag=True,
    help="For --repair on file systems without locks: you are sure that no job is running there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify(
    directory: Path,
    step: int | None,
    every: bool,
    local_dirs: tuple[Path, ...],
    signing: Signing | None,
    repair: bool,
    no_lock: bool,
    as_json: bool,
) -> int:
    """Read all of a checkpoint in DIR and check every digest.

    It continues after damage, and names the damaged leaves. Exit code 1 if anything is damaged or incomplete and has
    not been repaired. --repair refuses while a job is running there: a job repairs its own nodes (scrub_bandwidth).
    """
    if every and step is not None:
        raise click.UsageError("--step and --all exclude each other")
    owner = read_owner(directory)
    if not repair:
        return _verify(directory, step, every, local_dirs, signing, owner, False, as_json)
    with hold_directory(directory, without_lock=no_lock):
        return _verify(directory, step, every, local_dirs, signing, owner, True, as_json)


def _verify(
    directory: Path,
    step: int | None,
    every: bool,
    local_dirs: tuple[Path, ...],
    signing: Signing | None,
    owner: Owner | None,
    repair: bool,
    as_json: bool,
) -> int:
    from deeppart.offline.inspect.verifying import choose_steps
    from deeppart.offline.inspect.verifying import verify as verify_subject

    timed: list[tuple[VerifyResult, float]] = []
    out = console()
    there = not local_dirs or list_steps(directory)
    subjects = choose_steps(directory, step, every=every, signing=signing) if there else []
    names = step_names(subject.key for subject in subjects)
    with progress_bar(out, shown=not as_json) as progress:
        task = progress.add_task("", total=sum(subject.nbytes for subject in subjects))
        for subject in subjects:
            progress.update(task, description=f"step {names[subject.key]}")
            began = time.monotonic()
            verdict = verify_subject(subject, lambda nbytes: progress.advance(task, nbytes))
            timed.append((verdict, time.monotonic() - began))
            if not as_json:
                _print(out, names[subject.key], *timed[-1])
        nodes = verify_nodes(local_dirs, lineage_on_nodes(directory), signing, step) if local_dirs else None
    repaired = _repair(directory, [verdict for verdict, _ in timed], nodes, signing) if repair else []
    suspicions = read_suspicions(directory)
    if as_json:
        document = _document(directory, timed, owner, nodes, repaired, repair, suspicions)
        print_json({**document, "signatures_checked": signing is not None})
    else:
        if signing is None:
            _print_unchecked(out, [verdict for verdict, _ in timed])
        _print_suspects(out, [verdict for verdict, _ in timed], nodes, suspicions)
        _print_nodes(out, nodes, repaired)
        if line := owner_line(owner):
            out.print(line)
    return GOOD if _all_good(timed, owner, nodes, repaired) else NOT_GOOD


def _repair(
    directory: Path, verdicts: list[VerifyResult], nodes: NodeFiles | None, signing: Signing | None
) -> list[Repaired]:
    """Repair what can be: parts on the persistent level, and files on nodes."""
    from deeppart.offline.inspect.repairing import Repairer

    damaged = [step_directory(directory, verdict.key) / file for verdict in verdicts for file in verdict.damaged_files]
    repairer = Repairer(directory, nodes or NodeFiles((), (), 0, 0, ()), damaged, signing)
    repairer.remove_leftovers()
    return repairer.repair_nodes() + repairer.repair(damaged)


def _all_good(
    timed: list[tuple[VerifyResult, float]], owner: Owner | None, nodes: NodeFiles | None, repaired: list[Repaired]
) -> bool:
    if any(each.problem is not None for each in repaired):
        return False
    repaired_paths = {each.path for each in repaired}
    if nodes is not None and (nodes.unread or any(each.path not in repaired_paths for each in nodes.damage)):
        return False
    return all(_is_good(verdict, owner) or (repaired and verdict.is_only_parts) for verdict, _ in timed)


def _is_good(verdict: VerifyResult, owner: Owner | None) -> bool:
    """Sound; or on its way in or out while a job is running."""
    if owner is not None and owner.running and verdict.state == "unfinished":
        return True
    return verdict.state in ("sound", "removed")


def _document(
    directory: Path,
    timed: list[tuple[VerifyResult, float]],
    owner: Owner | None,
    nodes: NodeFiles | None,
    repaired: list[Repaired],
    repair: bool,
    suspicions: Suspicions,
) -> dict[str, Any]:
    verdicts = [verdict for verdict, _ in timed]
    return {
        "directory": str(directory),
        "good": _all_good(timed, owner, nodes, repaired),
        "owner": to_json(owner),
        "steps": [
            {
                **record_json(verdict, "step", "session", "damaged_leaves", without=("manifest",)),
                "signed": verdict.manifest is not None and verdict.manifest.signed,
                "seconds": round(seconds, 6),
                "suspect": to_json(_suspects(verdict, suspicions)),
            }
            for verdict, seconds in timed
        ],
        "unreadable_suspect_records": list(suspicions.problems),
        "nodes": None
        if nodes is None
        else {
            **record_json(nodes, "state", without=("stocks",)),
            "suspect": to_json(_suspects_on_nodes(nodes, verdicts, suspicions)),
        },
        "repairs": to_json(repaired) if repair else None,
    }


def _print_unchecked(out: Console, verdicts: list[VerifyResult]) -> None:
    for verdict in verdicts:
        if verdict.manifest is not None and verdict.manifest.signed:
            out.print(Text(unchecked_line(verdict.step), "yellow"), soft_wrap=True)


def _suspects(verdict: VerifyResult, suspicions: Suspicions) -> tuple[SuspectLeaf, ...]:
    return () if verdict.manifest is None else suspicions.of(verdict.manifest.attempt)


def _suspects_on_nodes(
    nodes: NodeFiles | None, verdicts: list[VerifyResult], suspicions: Suspicions
) -> list[tuple[Attempt, tuple[SuspectLeaf, ...]]]:
    """Those that have files on nodes and are not among the verdicts."""
    stocks = () if nodes is None else [found for _, found in nodes.stocks]
    attempts = {part.attempt for found in stocks for part in found.parts}
    attempts -= {verdict.manifest.attempt for verdict in verdicts if verdict.manifest is not None}
    ordered = sorted(attempts, key=lambda attempt: (attempt.step, attempt.key))
    return [(attempt, leaves) for attempt in ordered if (leaves := suspicions.of(attempt))]


def _print_suspects(
    out: Console, verdicts: list[VerifyResult], nodes: NodeFiles | None, suspicions: Suspicions
) -> None:
    """Steps whose bytes may be those of one rank only. That is not damage: the files are as they were written."""
    found = [(verdict.step, _suspects(verdict, suspicions)) for verdict in verdicts]
    found += [(attempt.step, leaves) for attempt, leaves in _suspects_on_nodes(nodes, verdicts, suspicions)]
    for step, leaves in found:
        for leaf in leaves:
            out.print(Text(printable(f"step {step} is suspect: {leaf}"), "yellow"), soft_wrap=True)
    for problem in suspicions.problems:
        out.print(Text(printable(f"a record of suspect steps cannot be read: {problem}"), "yellow"), soft_wrap=True)


def _print_nodes(out: Console, nodes: NodeFiles | None, repaired: list[Repaired]) -> None:
    if nodes is not None:
        line = Text.assemble(("on nodes", "bold"), "  ", state_text(nodes.state))
        line.append(f"  {count(nodes.files, 'file')}, {show_bytes(nodes.nbytes)} read")
        out.print(line)
        for each in nodes.damage:
            out.print(Text("  " + printable(each.message), "red"), soft_wrap=True)
        for problem in nodes.unread:
            out.print(Text("  " + printable(f"could not be read: {problem}"), "red"), soft_wrap=True)
        for remark in nodes.remarks:
            out.print(Text("  " + printable(remark)), soft_wrap=True)
    for done in repaired:
        what = f"repaired from {done.source}" if done.problem is None else f"not repaired: {done.problem}"
        out.print(Text(printable(f"{done.path}: {what}"), "green" if done.problem is None else "red"), soft_wrap=True)


def _print(out: Console, name: str, verdict: VerifyResult, seconds: float) -> None:
    line = Text.assemble((f"step {name}", "bold"), "  ", state_text(verdict.state))
    if verdict.parts:
        rate = f", {show_bytes(round(verdict.nbytes / seconds))}/s" if seconds > 0 else ""
        line.append(f"  {count(verdict.parts, 'part')}, {show_bytes(verdict.nbytes)} read in {seconds:.2f} s{rate}")
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
