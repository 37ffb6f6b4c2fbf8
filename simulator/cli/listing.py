"""The machines and states that are known: what ``--machine list`` and ``--state list`` show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from deeppart.cli.commands import GOOD
from deeppart.model import show_bytes, show_rate, show_seconds

from ..machine.files import PLAIN, TABLES, keys_of, machine_toml, preset_names, read_machine
from ..machine.record import Machine
from ..report.blocks import Columns, Items, Result, Section, table_of
from ..workload.layout import KEYS
from ..workload.shapes import FAMILIES, PRESETS, WORKLOADS
from ..workload.states import OPTIMIZERS, read_state
from .output import emit, print_json, state_document


def list_machines(name: str, as_json: bool) -> int:
    """The presets; or one machine, as a complete machine file to begin with."""
    found = [read_machine(each) for each in ([name] if name else preset_names())]
    if as_json:
        documents = [machine_document(machine) for machine in found]
        print_json(documents[0] if name else documents)
        return GOOD
    if name:
        click.echo(machine_toml(found[0]), nl=False)
        return GOOD
    columns: Columns = {
        "preset": lambda each: each.name,
        "nodes": lambda each: f"{each.nodes:,}",
        "ranks each": lambda each: str(each.ranks_per_node),
        "copy": lambda each: show_rate(each.memory.copy),
        "node's storage": lambda each: show_rate(each.local.write),
        "network": lambda each: show_rate(each.network.bandwidth),
        "file system": lambda each: show_rate(each.persistent.write),
        "a node fails every": lambda each: show_seconds(each.failures.node),
    }
    return emit({}, Result("", {}, [Section("machines", [table_of("presets", found, columns)])]))


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine as its file has it."""
    found = {name: getattr(machine, name) for name in PLAIN}
    for name, record in TABLES.items():
        found[name] = {key: getattr(getattr(machine, name), key) for key in keys_of(record)}
    return found | {"groups": machine.failures.groups, "codecs": machine.codecs}


def list_states(name: str, as_json: bool) -> int:
    """All models with Adam; or the size of one state."""
    found = [read_state(each) for each in ([name] if name else [f"{each}+adam" for each in PRESETS])]
    if as_json:
        print_json([state_document(state) | {"layout": asdict(state.layout)} for state in found])
        return GOOD
    columns: Columns = {
        "state": lambda each: each.name,
        "parameters": lambda each: f"{each.parameters:,}",
        "bytes": lambda each: show_bytes(each.nbytes),
        "leaves": lambda each: f"{len(each.tensors):,}",
    }
    workloads = ", ".join(f"{each.name} on {each.processes:,} ranks" for each in WORKLOADS.values())
    optimizers = ", ".join(f"+{each}" for each in OPTIMIZERS if each)
    more = (
        f"whole states of MLPerf Storage, in its closed division: {workloads}",
        f"families: {', '.join(FAMILIES)}",
        f"optimizers: {optimizers}; layouts: @{', '.join(KEYS)}",
    )
    return emit({}, Result("", {}, [Section("states", [table_of("models", found, columns), Items(more)])]))
