"""``deeppart-sim states``: the models that are known, and what a state comes to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from deeppart.cli.commands import GOOD
from deeppart.model.units import show_bytes

from ..workload.layout import KEYS
from ..workload.shapes import FAMILIES, PRESETS, WORKLOADS
from ..workload.states import OPTIMIZERS, State, read_state
from .consoles import console, table
from .options import print_json


@click.command(short_help="List the known states.")
@click.argument("names", metavar="[STATE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def states(names: tuple[str, ...], as_json: bool) -> int:
    """Size and number of leaves of some states; of all models with Adam if none is named."""
    found = [read_state(name) for name in names or [f"{name}+adam" for name in PRESETS]]
    if as_json:
        print_json([_document(state) for state in found])
        return GOOD
    listing = table("states", ["state", "parameters", "bytes", "leaves"])
    for state in found:
        cells = [state.name, f"{state.parameters:,}", show_bytes(state.nbytes), f"{len(state.tensors):,}"]
        listing.add_row(*cells)
    out = console()
    out.print(listing)
    workloads = ", ".join(f"{each.name} on {each.processes:,} ranks" for each in WORKLOADS.values())
    out.print(f"whole states of MLPerf Storage, in its closed division: {workloads}", soft_wrap=True)
    out.print(f"families: {', '.join(FAMILIES)}", soft_wrap=True)
    out.print(f"optimizers: {', '.join(f'+{name}' for name in OPTIMIZERS if name)}; layouts: @{', '.join(KEYS)}")
    return GOOD


def _document(state: State) -> dict[str, Any]:
    return {
        "name": state.name,
        "parameters": state.parameters,
        "bytes": state.nbytes,
        "leaves": len(state.tensors),
        "layout": asdict(state.layout),
        "source": state.source,
    }
