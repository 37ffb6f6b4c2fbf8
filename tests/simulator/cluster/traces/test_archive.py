"""Traces in folders and archives, and what is none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from deeppart_simulator.cluster import applications as module
from deeppart_simulator.cluster.applications import SHIPPED, Archive

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import write_trace


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
