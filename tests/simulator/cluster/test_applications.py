"""How fast trainings go: what was measured, and in between."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from deeppart_simulator.cluster import applications as module
from deeppart_simulator.cluster.applications import (
    SHIPPED,
    Archive,
    Settings,
    read_workload,
    restarts_s,
)
from deeppart_simulator.machine.files import read_machine

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import application, write_trace


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", "x", "scales", 2, 64)], "row 1"),
        ([("a", 5, "scales", 2, 64), ("a", 7, "scales", 1, 32)], "the same name"),
        ([("a", 5, "unknown", 2, 64)], "lacks a table"),
    ],
)
def test_rows_that_say_nothing(tmp_path: Path, rows: list[tuple[str, float, str, int, int]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_workload(write_trace(tmp_path, rows), "workloads/toy.csv", {})


def test_a_folder_and_a_zip_archive_are_alike(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "trace")
    packed = tmp_path / "trace.zip"
    with zipfile.ZipFile(packed, "w") as file:
        for name in folder.names:
            file.write(tmp_path / "trace" / name, name)
    assert Archive(packed).names == folder.names
    assert all(Archive(packed).table(name) == folder.table(name) for name in folder.names)


def test_the_trace_that_is_shipped_is_small_and_says_whose_it_is() -> None:
    shipped = Path(module.__file__).parent / "adaptdl.zip"
    assert shipped.stat().st_size < 300_000
    with zipfile.ZipFile(shipped) as file:
        assert b"Apache License" in file.read("NOTICE") and b"Petuum" in file.read("NOTICE")
    assert [len(Archive(SHIPPED).workloads(f"workloads{load}")) for load in ("", "-0.5", "-1.5", "-2.0")] == [8] * 4


def test_pieces_of_a_machine_and_bytes_of_a_state(tmp_path: Path) -> None:
    small = application(tmp_path)
    large = replace(small, name="large", settings=Settings(5, state="tensors-100x300MB"))
    machine = read_machine("summit")
    slow = replace(machine, restart=replace(machine.restart, relaunch=machine.restart.relaunch + 100))
    found, slower = (restarts_s(each, 4, [small, large]) for each in (machine, slow))
    assert {name: slower[name] - found[name] for name in found} == pytest.approx({"scales": 100.0, "large": 100.0})
    assert found["large"] > found["scales"] + 2 * (30e9 - 0.21e9) / machine.persistent.read
    ready = replace(machine, restart=replace(machine.restart, mode="in-process"))
    assert restarts_s(ready, 4, [small])["scales"] < 5.0 < machine.restart.relaunch < found["scales"]
