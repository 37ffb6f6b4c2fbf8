"""Formats are told by how files begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.traces.read import FORMATS, format_of, read_trace

from deeppart.cadence import History
from deeppart.errors import ConfigError
from tests.simulator.traces.logs import LANL, PHILLY, SACCT, written


def test_each_format_is_told(tmp_path: Path) -> None:
    table = "# nodes = 2\nat_s,kind,nodes\n1,node,0\n"
    texts: dict[str, Any] = {"slurm": SACCT, "lanl": LANL, "philly": PHILLY, "csv": table}
    for name, text in texts.items():
        file = written(tmp_path, text)
        assert format_of(file) == name and read_trace(file).format == name
    History(tmp_path, "aa" * 16, 1).end(failed=False)
    assert read_trace(tmp_path).format == "runs" == format_of(tmp_path / "deeppart-runs.json")
    assert set(FORMATS) == {*texts, "runs"}


def test_what_is_in_no_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--system would change nothing"):
        read_trace(written(tmp_path, SACCT), system="2")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none")
    for text in ("hello\n", "", "a|b|c\n", "{}", "System,nodes\n"):
        with pytest.raises(ConfigError, match=r"sacct --parsable2.*at_s"):
            read_trace(written(tmp_path, text))


def test_a_trace_that_is_not_there_is_not_to_be_corrected(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(ConfigError, match="give the path of a trace"):
            read_trace(path)
