"""Machines: units, presets, files, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from deeppart_simulator.machine.files import machine_toml, preset_names, read_machine

from deeppart.errors import ConfigError

LEAST = """
nodes = 4
ranks_per_node = 2
[memory]
copy = "10 GB/s"
node_copy = "20 GB/s"
[local]
write = "2 GB/s"
read = "3 GB/s"
[network]
bandwidth = "10 GB/s"
[persistent]
write = "5 GB/s"
read = "5 GB/s"
node_write = "2 GB/s"
node_read = "2 GB/s"
"""


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_read_and_written_back(name: str, tmp_path: Path) -> None:
    machine = read_machine(name)
    assert machine.name == name and machine.source
    copy = tmp_path / "copy.toml"
    copy.write_text(machine_toml(machine))
    again = read_machine(str(copy))
    assert machine_toml(again) == machine_toml(machine)
    assert again.nodes == machine.nodes


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    """Each line with a number says in brackets where it is from, or a comment above its table does."""
    import deeppart_simulator

    text = (Path(deeppart_simulator.__file__).parent / "machine" / "presets" / f"{name}.toml").read_text()
    explained = False
    for line in text.splitlines():
        if not line.strip():
            explained = False
        elif line.startswith("#"):
            explained = "[" in line
        elif "=" in line and not line.startswith(("name", "source")):
            assert explained or "[" in line.partition("#")[2], line


def test_a_file_may_build_on_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "frontier"\nname = "mine"\nnodes = 3\n[persistent]\nwrite = "1 GB/s"\n')
    machine, base = read_machine(str(file)), read_machine("frontier")
    assert (machine.name, machine.nodes, machine.persistent.write) == ("mine", 3, 1e9)
    assert machine.persistent.read == base.persistent.read and machine.memory == base.memory


def test_the_least_a_file_needs(tmp_path: Path) -> None:
    file = tmp_path / "least.toml"
    file.write_text(LEAST)
    machine = read_machine(str(file))
    assert machine.name == "least" and math.isinf(machine.failures.node)
    assert machine.memory.kappa_bytes == pytest.approx(3e-6 * 10e9)


@pytest.mark.parametrize(
    ("change", "key", "allowed"),
    [
        (('copy = "10 GB/s"', "copy = 0"), "memory.copy", "at least 1 MB/s"),
        (("ranks_per_node = ", "ranks_per_node = 100000"), "ranks_per_node", "4096"),
        (('copy = "10 GB/s"', 'copy = "fast"'), "memory.copy", "bytes per second"),
        (('copy = "10 GB/s"', "copi = 3"), "memory.copi", "copy"),
        (("nodes = 4", "nodes = 2.5"), "nodes", "whole number"),
        (("nodes = 4", "nodes = 1000000000"), "nodes", "to 10,000,000"),
        (("nodes = 4", "nodes = 4\ninterference = 1.0"), "interference", "below 1"),
        (('[network]\nbandwidth = "10 GB/s"', ""), "network.bandwidth", "bytes per second"),
        (("[network]", '[failures]\nnode = "sometimes"\n[network]'), "failures.node", "never"),
        (("[network]", "[codec.float32]\nratio = 0.8\n[network]"), "codec.float32.encode", "bytes per second"),
        (
            ("[network]", "[codec.flot32]\nratio = 0.8\nencode = 1e9\ndecode = 1e9\n[network]"),
            "codec.flot32",
            "float32",
        ),
        (("nodes = 4", 'base = "moon"\nnodes = 4'), "base", "frontier"),
        (("[network]", '[restart]\nmode = "spare"\n[network]'), "restart.mode", "one of job, allocation, spares"),
        (("[network]", "[restart]\nimports_rank = -1\n[network]"), "restart.imports_rank", "at least 0"),
        (("[network]", "[price]\nnode_hour = 3\n[network]"), "price.currency", "currency"),
        (("[network]", '[price]\ncurrency = "USD"\nnode_hour = -3\n[network]'), "price.node_hour", "at least 0"),
        (('write = "2 GB/s"', 'write = "2 GB/s"\ncapacity = 0'), "local.capacity", "at least 1 MB"),
        (("nodes = 4", 'name = "a\\u001b[31mb"\nnodes = 4'), "name", "without control characters"),
        (('write = "2 GB/s"', 'write = "2 GB/s"\nendurance = 0'), "local.endurance", "at least 1 MB"),
        (('node_read = "2 GB/s"', 'node_read = "2 GB/s"\nquota = "5 km"'), "persistent.quota", "bytes"),
    ],
)
def test_impossible_files_are_refused(tmp_path: Path, change: tuple[str, str], key: str, allowed: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(LEAST.replace(*change))
    with pytest.raises(ConfigError) as caught:
        read_machine(str(file))
    text = str(caught.value)
    assert key in text and allowed in text and str(file) in text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such machine") as caught:
        read_machine("moon")
    assert "frontier" in str(caught.value)
    file = tmp_path / "broken.toml"
    file.write_text("nodes = = 3")
    with pytest.raises(ConfigError, match="cannot read"):
        read_machine(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        read_machine(str(file))
