"""How fast trainings go: what was measured, and in between."""

from __future__ import annotations

import zipfile
from pathlib import Path

from deeppart_simulator.cluster import applications as module
from deeppart_simulator.cluster.applications import (
    SHIPPED,
    Archive,
)


def test_the_trace_that_is_shipped_is_small_and_says_whose_it_is() -> None:
    shipped = Path(module.__file__).parent / "adaptdl.zip"
    assert shipped.stat().st_size < 300_000
    with zipfile.ZipFile(shipped) as file:
        assert b"Apache License" in file.read("NOTICE") and b"Petuum" in file.read("NOTICE")
    assert [len(Archive(SHIPPED).workloads(f"workloads{load}")) for load in ("", "-0.5", "-1.5", "-2.0")] == [8] * 4
