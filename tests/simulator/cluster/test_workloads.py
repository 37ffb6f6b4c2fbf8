"""Workloads: their rows, and rows that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import read_workload

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import write_trace


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
