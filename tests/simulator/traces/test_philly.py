"""Microsoft's Philly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.traces.schedulers import is_philly, read_philly

from deeppart.errors import ConfigError
from tests.simulator.traces.logs import PHILLY, written


def test_the_published_example(tmp_path: Path) -> None:
    trace = read_philly(written(tmp_path, PHILLY))
    assert [(event.at_s, event.kind, event.nodes) for event in trace.events] == [(74.0, "process", ("m47",))]
    second = 2 * 86400 + 5 * 3600 + 39 * 60 + 42
    assert trace.observation.process_s == 8 * (74 + second) and trace.observation.nodes == 2
    assert list(trace.waits_s) == [30.0, 7.0] and trace.tells == ("process",)


def test_how_jobs_end(tmp_path: Path) -> None:
    jobs = []
    for status in ("Pass", "Killed", "Failed"):
        (job,) = copy.deepcopy(PHILLY)
        jobs.append(job | {"status": status, "attempts": job["attempts"][:1]})
    trace = read_philly(written(tmp_path, jobs))
    assert len(trace.events) == 1 and trace.runs is not None and list(trace.runs.ended) == [-1, -1, 0]


@pytest.mark.parametrize("nothing", [None, "None", ""])
def test_times_that_are_missing(tmp_path: Path, nothing: str | None) -> None:
    (job,) = copy.deepcopy(PHILLY)
    job["attempts"][0]["start_time"] = nothing
    job["attempts"][1]["end_time"] = nothing  # still running
    trace = read_philly(written(tmp_path, [job, {**job, "attempts": []}]))
    assert trace.runs is not None and list(trace.runs.ended) == [-1]
    assert "1 attempts without a start_time left out" in trace.notes


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_it_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(philly, "_PIECE", size)
    trace = read_philly(written(tmp_path, PHILLY * 5))
    assert trace.runs is not None and len(trace.runs.seconds) == 10


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"status": "Gone"}, "Pass, Killed, Failed"),
        ({"attempts": None}, "attempts"),
        ({"attempts": [3]}, "start_time"),
        ({"attempts": [{"start_time": "soon", "end_time": None, "detail": []}]}, "2017-10-07"),
        ({"attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": [{"ip": "m1"}]}]}, "gpus"),
        (
            {"attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:12:08", "detail": []}]},
            "later",
        ),
    ],
)
def test_impossible_entries(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match="line 1") as caught:
        read_philly(written(tmp_path, [PHILLY[0] | change]))
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[", "[{", '[{"status": "Pass"}', "[]", "[1]"])
def test_what_is_no_such_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_philly(written(tmp_path, text))


def test_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 3"):
        read_philly(written(tmp_path, '[\n{"status": "Pass", "attempts": []},\n{"status": 3, "attempts": []}\n]\n'))
    assert is_philly(" [\n") and not is_philly("{")
