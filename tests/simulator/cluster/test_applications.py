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
    divided,
    packed,
    read_application,
    read_workload,
    restarts_s,
)
from deeppart_simulator.machine.files import read_machine

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import MODELS, application, write_trace

MODEL = MODELS["scales"]


def test_measured_placements_and_batches_between(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert (app.batch, app.most_batch, app.least_local, app.most_local) == (32, 512, 8, 64)
    assert app.times((1, 2), 16).step_s == pytest.approx(float(MODEL.step_s(2, 3, 16)))
    assert app.times((2, 1), 16) == app.times((1, 2), 16) == app.times((0, 1, 2), 16)
    between = app.times((2, 2), 24)
    assert between.step_s == pytest.approx((app.times((2, 2), 16).step_s + app.times((2, 2), 32).step_s) / 2)
    assert between.step_s - between.sync_s == pytest.approx(float(MODEL.accumulated_s(24)))


def test_placements_between_measured_ones(tmp_path: Path) -> None:
    found = application(tmp_path).times((1,) * 6, 16)
    assert found.step_s == pytest.approx(float(MODEL.step_s(6, 6, 16)), rel=0.05)


@pytest.mark.parametrize(("placement", "local"), [((1, 2), 7), ((1, 2), 65), ((1,) * 6, 100), ((2,) * 16, 8)])
def test_what_was_not_measured_is_refused(tmp_path: Path, placement: tuple[int, ...], local: int) -> None:
    with pytest.raises(ConfigError, match="was not measured"):
        application(tmp_path).times(placement, local)


def test_progress_iterations_and_noise(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert [app.progress(epoch) for epoch in (0, 1, 5)] == [0.0, 300.0, 1500.0]
    assert app.iterations(32, 4) == pytest.approx(1500.0)
    assert app.iterations(80, 4) == pytest.approx((app.iterations(32, 4) + app.iterations(128, 4)) / 2)
    assert app.noise(100, 2) == (1.0, 8.0)
    with pytest.raises(ConfigError, match="a batch of scales"):
        app.noise(513, 0)


def test_a_batch_is_divided_among_gpus_and_micro_batches(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert divided(128, 4, app) == (32, 0)
    assert divided(512, 4, app) == (64, 1)
    assert divided(64, 1, app) == (32, 1)  # one GPU needs two for the noise
    assert divided(32, 1, app) == (32, 0)
    assert packed(7, 4) == (4, 3) and packed(8, 4) == (4, 4)


def test_tables_that_say_nothing(tmp_path: Path) -> None:
    archive = write_trace(tmp_path)
    with pytest.raises(ConfigError, match="lacks a table"):
        read_application(archive, "other")
    (tmp_path / "traces" / "stays" / "placements.csv").write_text("placement,local_bsz\n1,8\n")
    with pytest.raises(ConfigError, match="say nothing"):
        read_application(archive, "stays")


def test_rows_and_applications_that_are_shared(tmp_path: Path) -> None:
    archive = write_trace(tmp_path, [("a", 5, "scales", 2, 64), ("b", 7, "scales", 1, 32)])
    first, second = read_workload(archive, "workloads/toy.csv", {})
    assert (first.name, first.submitted_s, first.gpus, first.batch) == ("a", 5.0, 2, 64)
    assert first.application is second.application


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


def test_workloads_by_name_and_by_folder(tmp_path: Path) -> None:
    archive = write_trace(tmp_path)
    for name in ("workloads", "workloads/", "workloads/toy", "workloads/toy.csv"):
        assert archive.workloads(name) == ["workloads/toy.csv"]
    for name in ("workload", "traces", "traces/scales", ""):
        with pytest.raises(ConfigError, match="no such workload"):
            archive.workloads(name)


def test_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for where in (tmp_path / "nowhere", tmp_path / "text"):
        with pytest.raises(ConfigError, match="no such trace"):
            Archive(where)


@pytest.mark.parametrize("text", ["", "a,b\n", "a,b\n1\n", "a,b\n1,2,3\n", "a\n\xff\n"])
def test_what_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "x.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="table"):
        Archive(tmp_path).table("w/x.csv")


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
