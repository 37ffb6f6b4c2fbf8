"""What commands print and write: one result as text, JSON, CSV, a picture and a page."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console
from rich.text import Text

from deeppart.cli import commands
from deeppart.cli.commands import GOOD, NOT_GOOD

from ..advise.text import what_if
from ..report.blocks import Block, Code, Items, Result, Section, Table, chart_of
from ..report.page import render
from ..report.sections import job_facts
from ..timing.stages import Job
from ..workload.states import State

#: What goes into a file or a pipe is never cut or wrapped.
_UNLIMITED_COLUMNS = 10_000


def emit(asked: Mapping[str, Any], result: Result, command: str = "") -> int:
    """Write the files that are asked for, and print the result."""
    if asked.get("csv_path") is not None:
        write_csv(asked["csv_path"], result.rows)
    if asked.get("png_path") is not None:
        chart_of(result.sections).save(asked["png_path"])
    if asked.get("report_path") is not None:
        asked["report_path"].write_text(render(result, command), encoding="utf-8")
    if asked.get("as_json"):
        print_json(result.document)
    else:
        console = _Plain()
        if not console.is_terminal:
            console.width = _UNLIMITED_COLUMNS
        for name, words in result.facts:
            console.print(f"{name}: {words}", soft_wrap=True)
        for note in result.notes:
            console.print(note, soft_wrap=True)
        for section in result.sections:
            console.print(Text(f"\n{section.title}", style="bold"))
            for block in section.blocks:
                _show(console, block)
    return GOOD if result.good else NOT_GOOD


# --- for programs -----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value for JSON, by fields where it is a record. JSON has no infinity: it is null."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value) if each.name[0] != "_"}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def flat(record: Any) -> dict[str, Any]:
    """A record as a row: what is nested has the names of both."""
    row: dict[str, Any] = {}
    for name, value in plain(record).items():
        if isinstance(value, dict):
            row |= {f"{name}_{key}".replace(" ", "_"): each for key, each in value.items()}
        else:
            row[name] = value
    return row


def print_json(document: Any) -> None:
    """The one JSON document of a command: the same input, the same bytes."""
    commands.print_json(plain(document), sort_keys=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV (RFC 4180), with the columns of all of them."""
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names))
        writer.writeheader()
        writer.writerows(rows)


def job_result(
    kind: str,
    job: Job,
    found: Mapping[str, Any],
    sections: Sequence[Section],
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    spares: int = 0,
    page: Callable[[Sequence[Section]], Sequence[Section]] = list,
) -> Result:
    """What a command has found about a job."""
    notes = [*what_if(job.machine, job.nodes, spares), *notes]
    document = {
        "format": f"deeppart-sim-{kind}",
        "version": 1,
        "state": state_document(job.state),
        "machine": job.machine.name,
        "restart_mode": job.machine.restart.mode,
        "ranks": job.ranks,
        "ranks_per_node": job.ranks_per_node,
        "nodes": job.nodes,
        "notes": notes,
    }
    title = f"{kind}: {job.state.name} on {job.ranks} ranks of {job.machine.name}"
    return Result(title, document | dict(found), sections, rows, job_facts(job), notes, page)


def state_document(state: State) -> dict[str, Any]:
    """A state, for documents."""
    sizes = {"bytes": state.nbytes, "leaves": len(state.tensors), "parameters": state.parameters}
    return {"name": state.name, "layout": str(state.layout), "source": state.source} | sizes


# --- for people -------------------------------------------------------------------------------------------------------


class _Plain(Console):
    """A console on which nothing is markup: names of machines and states are the user's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """The reader has gone: the group of commands answers that, with an exit code of its own."""
        raise BrokenPipeError


def status_console() -> Console:
    """The console for progress: not in the output that is piped on."""
    return _Plain(stderr=True)


def _show(console: Console, block: Block) -> None:
    """A block of a section, but for its charts."""
    if isinstance(block, Table):
        console.print(_rich(block))
    elif isinstance(block, Items):
        for line in block.lines:
            console.print(f"- {line}", soft_wrap=True)
    elif isinstance(block, Code):
        console.print(Text(f"\n{block.title}", style="bold"))
        console.print(block.text, soft_wrap=True)
    elif isinstance(block, str):
        console.print(block, soft_wrap=True)


def _rich(shown: Table) -> rich.table.Table:
    found = rich.table.Table(title=shown.title, title_justify="left", title_style="bold")
    for name, words in zip(shown.head, shown.words, strict=True):
        found.add_column(name, justify="left" if words else "right", no_wrap=True)
    for place, row in enumerate(shown.rows):
        if place in shown.breaks:
            found.add_section()
        found.add_row(*row, style=shown.mark if place in shown.marked else "")
    return found
