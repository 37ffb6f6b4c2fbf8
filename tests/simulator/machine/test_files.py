"""Machines: units, presets, files, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from deeppart_simulator.machine.files import machine_toml, preset_names, read_machine

from deeppart.errors import ConfigError
from deeppart.model.units import read_bytes, read_rate, read_seconds, show_bytes, show_rate, show_seconds, show_share

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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 MB", 4e6),
        ("4MiB", 4 << 20),
        (12, 12.0),
        ("1.5 TB", 1.5e12),
        ("64KiB", 65536),
        ("10 B", 10.0),
        ("3e2 kB", 3e5),
    ],
)
def test_bytes(text: object, value: float) -> None:
    assert read_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20 us", 2e-5),
        ("5 years", 5 * 365.25 * 86400),
        ("1 day", 86400),
        ("90 days", 90 * 86400),
        ("2min", 120),
        (0.5, 0.5),
        ("3 h", 10800),
        ("1 week", 604800),
        ("12 ms", 0.012),
    ],
)
def test_seconds(text: object, value: float) -> None:
    assert read_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["fast", "-3 GB/s", "3 GB/h", None, True, "", "3 parsec", [1], "3 gb/s"])
def test_nonsense_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="bytes per second"):
        read_rate(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0213, "21.3 ms"),
        (4.02, "4.02 s"),
        (200, "3 min 20 s"),
        (18720, "5 h 12 min"),
        (12.3 * 86400, "12.3 d"),
        (2.5e-6, "2.5 us"),
        (3e-9, "3 ns"),
        (math.inf, "never"),
        (5 * 365.25 * 86400, "5 years"),
        (0.99999, "1 s"),
        (99.99, "1 min 40 s"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_sizes_for_people() -> None:
    assert [show_bytes(n) for n in (0, 999, 1000, 4_021_704_220, 7e18)] == ["0 B", "999 B", "1 kB", "4.02 GB", "7 EB"]
    assert show_rate(2.5e9) == "2.5 GB/s" and show_rate(math.inf) == "unlimited"
    assert [show_share(s) for s in (0.5, 0.0123, 0.00012)] == ["50.0 %", "1.2 %", "0.012 %"]


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
        (('copy = "10 GB/s"', "copy = 0"), "memory.copy", "above 0"),
        (('copy = "10 GB/s"', 'copy = "-1 GB/s"'), "memory.copy", "bytes per second"),
        (('copy = "10 GB/s"', 'copy = "fast"'), "memory.copy", "bytes per second"),
        (('copy = "10 GB/s"', "copy = inf"), "memory.copy", "bytes per second"),
        (('copy = "10 GB/s"', "copi = 3"), "memory.copi", "copy"),
        (("nodes = 4", "nodes = 0"), "nodes", "at least 1"),
        (("nodes = 4", "nodes = 2.5"), "nodes", "whole number"),
        (("nodes = 4", "nodes = true"), "nodes", "whole number"),
        (("nodes = 4", ""), "nodes", "whole number"),
        (("nodes = 4", "nodes = 4\ninterference = 1.0"), "interference", "below 1"),
        (('[network]\nbandwidth = "10 GB/s"', ""), "network.bandwidth", "bytes per second"),
        (("[network]", "[failures]\nnode = -5\n[network]"), "failures.node", "never"),
        (("[network]", '[failures]\nnode = "sometimes"\n[network]'), "failures.node", "never"),
        (
            ("[network]", "[codec.float32]\nratio = 2\nencode = 1e9\ndecode = 1e9\n[network]"),
            "codec.float32.ratio",
            "at most",
        ),
        (("[network]", "[codec.float32]\nratio = 0.8\n[network]"), "codec.float32.encode", "bytes per second"),
        (("nodes = 4", "codec = 3\nnodes = 4"), "codec", "[codec.DTYPE]"),
        (("nodes = 4", 'base = "moon"\nnodes = 4'), "base", "frontier"),
        (("nodes = 4", "name = 3\nnodes = 4"), "name", "a text"),
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
