"""Formats are told by how files begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.traces.read import (
    format_of,
    read_own_runs,
    read_plain,
    read_trace,
)
from deeppart_simulator.traces.record import Event

from deeppart.cadence import History
from deeppart.errors import ConfigError
from deeppart.model import RunsFile
from deeppart.storage import PosixStore
from tests.simulator.traces.logs import SACCT, written


def test_each_format_is_told(tmp_path: Path) -> None:
    table = "# nodes = 2\nat_s,kind,nodes\n1,node,0\n"
    for name, text in {"slurm": SACCT, "csv": table}.items():
        file = written(tmp_path, text)
        assert format_of(file) == name and read_trace(file).names
    History(PosixStore(tmp_path), "aa" * 16, 1).end(failed=False)
    assert format_of(tmp_path) == "runs" == format_of(tmp_path / "deeppart-runs.json")


def test_what_is_in_no_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none")
    for text in ("hello\n", "", "a|b|c\n", "{}", "System,nodes\n"):
        with pytest.raises(ConfigError, match=r"sacct --parsable2.*at_s"):
            read_trace(written(tmp_path, text))


WATCHED = "# of our cluster\n# seconds = 1000\n# nodes = 4\n"


def test_a_table(tmp_path: Path) -> None:
    text = "at_s,kind,nodes\n10,node,3\n20.5,group,2 0 1\n20.5,process,1\n99,system,\n100,preemption,\n\n"
    trace = read_plain(written(tmp_path, text))
    assert trace.events == (
        Event(10.0, "node", ("3",)),
        Event(20.5, "group", ("0", "1", "2")),
        Event(20.5, "process", ("1",)),
        Event(99.0, "system", ()),
        Event(100.0, "preemption", ()),
    )
    assert trace.names == ("0", "1", "2", "3") and trace.seconds == 0
    watched = read_plain(written(tmp_path, WATCHED + text))
    assert watched.seconds == 1000.0 and len(watched.names) == 4


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("time,kind\n", "line 1", "columns"),
        ("", "line 1", "columns"),
        ("at_s,kind,nodes\n-1,node,0\n", "line 2, column at_s", "at least 0"),
        ("at_s,kind,nodes\nsoon,node,0\n", "line 2, column at_s", "soon"),
        ("at_s,kind,nodes\n1,meteor,0\n", "line 2, column kind", "process, node, group, system, preemption"),
        ("at_s,kind,nodes\n1,node,4\n", "line 2, column nodes", "0 to 3"),
        ("at_s,kind,nodes\n1,node,\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,x\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,1 2\n", "line 2", "just one"),
        ("at_s,kind,nodes\n5,node,1\n4,node,1\n", "line 3", "ascending"),
        (WATCHED + "at_s,kind,nodes\n1001,node,1\n", "line 5", "after the end"),
        ("# seconds = never\nat_s,kind\n", "line 1, column seconds", "above 0"),
        ("# nodes = 2.5\nat_s,kind\n", "line 1, column nodes", "whole number"),
    ],
)
def test_impossible_tables_are_refused(tmp_path: Path, text: str, line: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_plain(written(tmp_path, text), nodes=4)
    assert line in str(caught.value) and what in str(caught.value)


def _run(
    began: str, *, seen: str | None = None, ended: str | None = None, restored: str | None = None
) -> dict[str, Any]:
    times = {"began": began, "seen": seen, "ended": ended}
    stamped = {name: text and f"2026-01-{text}:00:00.000000Z" for name, text in times.items()}
    return {"session": "ab" * 16, "nodes": 4, "restored": restored} | stamped


def _written(folder: Path, *runs: dict[str, Any]) -> Path:
    (folder / RunsFile.NAME).write_text(json.dumps({"format": "deeppart-runs", "version": 1, "runs": list(runs)}))
    return folder


def test_what_failed_is_what_the_next_run_came_back_from(tmp_path: Path) -> None:
    folder = _written(
        tmp_path,
        _run("01T00", seen="01T10"),
        _run("01T12", seen="01T13", restored="local"),
        _run("02T00", seen="02T06", restored="parity"),
        _run("03T00", ended="03T05", restored="persistent"),
        _run("04T00"),
    )
    trace = read_own_runs(folder)
    assert [(event.at_s / 3600, event.kind) for event in trace.events] == [
        (10.0, "process"), (11.0, "node"), (17.0, "system"),
    ]  # fmt: skip
    assert trace.seconds == 22 * 3600 and len(trace.names) == 4
    assert read_own_runs(folder / RunsFile.NAME).events == trace.events
