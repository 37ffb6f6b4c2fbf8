"""A job's own runs, as the library writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.traces.read import is_own_runs, read_own_runs
from deeppart_simulator.traces.record import KINDS

from deeppart.cadence import HISTORY_NAME, History
from deeppart.errors import ConfigError


def _run(
    began: str, *, seen: str | None = None, ended: str | None = None, restored: str | None = None
) -> dict[str, Any]:
    times = {"began": began, "seen": seen, "ended": ended}
    stamped = {name: text and f"2026-01-{text}:00:00.000000Z" for name, text in times.items()}
    return {"session": "ab" * 16, "nodes": 4, "restored": restored} | stamped


def _written(folder: Path, *runs: dict[str, Any]) -> Path:
    (folder / HISTORY_NAME).write_text(json.dumps({"format": "deeppart-runs", "version": 1, "runs": list(runs)}))
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
    assert trace.observation.seconds == 22 * 3600 and trace.observation.node_s == 4 * 22 * 3600
    assert trace.runs is not None
    assert [KINDS[number] if number >= 0 else "" for number in trace.runs.ended] == [
        "process",
        "node",
        "system",
        "",
        "",
    ]
    assert trace.one_job and read_own_runs(folder / HISTORY_NAME).events == trace.events


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    History(tmp_path, "aa" * 16, 3).end(failed=False)
    trace = read_own_runs(tmp_path)
    assert trace.observation.nodes == 3 and trace.observation.seconds > 0 and not trace.events
    assert is_own_runs((tmp_path / HISTORY_NAME).read_text()) and not is_own_runs("{}")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "deeppart-runs", "version": 2, "runs": []}', '{"a": NaN}'])
def test_what_is_no_history(tmp_path: Path, text: str) -> None:
    (tmp_path / HISTORY_NAME).write_text(text)
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_own_runs(tmp_path)


def test_a_directory_that_says_nothing_yet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_own_runs(tmp_path)
    with pytest.raises(ConfigError, match="1 runs, of which none"):
        read_own_runs(_written(tmp_path, _run("01T00")))
