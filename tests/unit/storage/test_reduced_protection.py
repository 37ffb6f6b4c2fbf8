"""Runs with less protection than asked for: noted, told when it is over, and in nobody's way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deeppart
from deeppart.storage.records import PROTECTION_NAME, note_protection, reduced_runs

FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32
LESS = ("parity: 2 of 4 nodes",)
HEAD = {"format": "deeppart-protection", "version": 1}


def sessions(root: Path) -> list[tuple[str, tuple[str, ...]]]:
    return [(run.session, run.lines) for run in reduced_runs(root)]


def test_nothing_is_written_for_runs_that_have_all(tmp_path: Path) -> None:
    assert not note_protection(tmp_path, FIRST, ()) and not list(tmp_path.iterdir()) and reduced_runs(tmp_path) == []


def test_the_first_run_that_has_all_again_is_told_and_no_other(tmp_path: Path) -> None:
    assert not note_protection(tmp_path, FIRST, LESS)
    assert note_protection(tmp_path, SECOND, ())
    assert not note_protection(tmp_path, THIRD, ())
    assert sessions(tmp_path) == [(FIRST, LESS), (SECOND, ())]


def test_only_so_many_runs_are_kept(tmp_path: Path) -> None:
    run = {"session": FIRST, "since": "2024-01-01T00:00:00.000000Z", "lines": list(LESS)}
    (tmp_path / PROTECTION_NAME).write_text(json.dumps(HEAD | {"runs": [run] * 500}))
    note_protection(tmp_path, SECOND, LESS)
    assert len(reduced_runs(tmp_path)) == 500 and reduced_runs(tmp_path)[-1].session == SECOND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": "deeppart-protection", "version": 2, "runs": []}',
        '{"format": "deeppart-protection", "version": 1}',
        '{"format": "deeppart-protection", "version": 1, "runs": [{"session": "x", "since": "", "lines": []}]}',
        json.dumps(HEAD | {"runs": [{"session": FIRST, "since": 1, "lines": []}]}),
        json.dumps(HEAD | {"runs": [{"session": FIRST, "since": "", "lines": [1]}]}),
        "[" * 100_000,
    ],
    ids=range(9),
)
def test_a_file_that_says_nothing_stops_nobody_and_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / PROTECTION_NAME).write_text(text)
    assert reduced_runs(tmp_path) == [] and not note_protection(tmp_path, SECOND, LESS)
    assert sessions(tmp_path) == [(SECOND, LESS)]


@pytest.mark.parametrize("kind", ["a directory", "a link", "too long"])
def test_what_is_no_file_of_ours_stops_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / PROTECTION_NAME
    if kind == "a directory":
        path.mkdir()
    elif kind == "a link":
        path.symlink_to("/etc/hostname")
    else:
        path.write_bytes(b" " * ((1 << 20) + 1))
    assert reduced_runs(tmp_path) == []
    deeppart.Checkpointer(deeppart.Config(str(tmp_path))).close()
