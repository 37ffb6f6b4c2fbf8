"""``deeppart-sim machines``: the presets, and what a machine file says."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import click

from deeppart.cli.commands import GOOD
from deeppart.model.units import show_rate, show_seconds

from ..machine.files import PLAIN, TABLES, keys_of, machine_toml, preset_names, read_machine
from ..machine.record import Machine
from .consoles import console, table
from .options import print_json


@click.command(short_help="List the known machines.")
@click.argument("name", metavar="[FILE|PRESET]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def machines(name: str | None, as_json: bool) -> int:
    """List the presets; or print one, or a file, as a complete machine file to begin with."""
    if name is not None:
        machine = read_machine(name)
        if as_json:
            print_json(machine_document(machine))
        else:
            click.echo(machine_toml(machine), nl=False)
        return GOOD
    found = [read_machine(preset) for preset in preset_names()]
    if as_json:
        print_json([machine_document(machine) for machine in found])
        return GOOD
    names = ["preset", "nodes", "ranks each", "copy", "node's storage", "network", "file system", "a node fails every"]
    listing = table("machines", names)
    for machine in found:
        node = machine.failures.node
        listing.add_row(
            machine.name, f"{machine.nodes:,}", str(machine.ranks_per_node), show_rate(machine.memory.copy),
            show_rate(machine.local.write), show_rate(machine.network.bandwidth), show_rate(machine.persistent.write),
            show_seconds(node),
        )  # fmt: skip
    console().print(listing)
    return GOOD


def machine_document(machine: Machine) -> dict[str, Any]:
    """The machine as JSON. JSON has no infinity: an unlimited value is null."""
    fields = {name: getattr(machine, name) for name in PLAIN}
    for name, record in TABLES.items():
        fields[name] = {key: getattr(getattr(machine, name), key) for key in keys_of(record)}
    fields["groups"] = {name: asdict(group) for name, group in machine.failures.groups.items()}
    fields["codecs"] = {dtype: asdict(codec) for dtype, codec in machine.codecs.items()}
    return {key: _finite(value) for key, value in fields.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value
